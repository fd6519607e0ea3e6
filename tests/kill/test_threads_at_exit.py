"""A process whose fit was ended while threads make batches: it exits, and soon."""

import pytest
from support.gang import run_alone

SCRIPT = """
import os, signal, threading
from support import fitting
import keras, resilient

class Data(keras.utils.PyDataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        if index == 7:
            threading.Event().wait(0.5)
        return fitting.data(4)

def end():
    if {how!r} == "raise":
        raise ValueError("mine")
    os.kill(os.getpid(), signal.SIGTERM)

given = fitting.arguments(x=Data(workers=2), shuffle=False, epochs=1)
del given["y"], given["batch_size"]
callbacks = [fitting.Do(end, 0, 3)]
net = fitting.model()
resilient.fit(net, checkpoint_dir={home!r}, callbacks=callbacks, **given)
"""


@pytest.mark.spread
@pytest.mark.parametrize(("how", "status"), [("raise", 1), ("stop", 143)])
def test_it_exits(how, status, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(how=how, home=str(tmp_path / "run")))
    ended, told = run_alone(script)
    assert ended == status, told[-3000:]
    assert ("ValueError: mine" in told) == (how == "raise")
