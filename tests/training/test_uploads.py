"""What becomes of uploads where a training ends, however it ends."""

import logging
import os
import signal
import threading
import time
from functools import partial

import keras
import numpy as np
import pytest
from support import fitting

import resilient
from resilient.errors import CheckpointWriteError, Interrupted
from resilient.storage.layout import committed_steps
from resilient.storage.remote.objects import Objects, StoreError
from resilient.training import outcome

pytestmark = [
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),
]


def address(folder):
    return f"file://{folder}/far"


def far_steps(folder):
    found = (folder / "far").rglob("step-*/manifest.json")
    return sorted(int(path.parent.name.split("-")[1]) for path in found)


def fit(folder, near="near", net=None, **options):
    options = {"upload": resilient.Upload(patience=0.2), "save_freq": 4} | options
    net = net or fitting.model()
    history = fitting.fit(net, address(folder), local_dir=folder / near, **options)
    return net, history


def refuse(*_arguments):
    raise StoreError("SlowDown", transient=True)


PUT = Objects.put


def no_files(self, name, content):
    """The claim is taken, and no file of a checkpoint."""
    return refuse() if "/" in name else PUT(self, name, content)


@pytest.mark.everywhere
def test_a_new_machine_ends_like_a_run_left_alone(tmp_path, capsys):
    expected = fitting.model()
    history = fitting.fit(expected, tmp_path / "plain")
    fitting.interrupted(
        address(tmp_path), local_dir=tmp_path / "near", save_freq=2, keep=9
    )
    assert far_steps(tmp_path)
    fitting.other_seed()
    again = [fitting.Interrupt()]
    net, mine = fit(tmp_path, "another machine", callbacks=again, verbose=2)
    (line,) = [s for s in capsys.readouterr().out.splitlines() if "Resumed at" in s]
    assert f" from {address(tmp_path)} ({tmp_path}/another machine/step-" in line
    fitting.assert_equal(fitting.values(net), fitting.values(expected))
    assert mine.history == history.history


def test_a_loop_ends_in_the_store_as_well(tmp_path):
    layer = keras.layers.Dense(1)
    layer.build((None, 1))

    def run(near):
        loop = resilient.Run(
            address(tmp_path), local_dir=tmp_path / near, layer=layer, verbose=0
        )
        seen = []
        for _, step, _ in loop.loop(np.zeros((8, 1)), epochs=2, batch_size=2):
            seen.append(step)
            layer.bias.assign_add([1.0])
        return seen

    assert run("a") == list(range(8))
    layer.bias.assign([0.0])
    assert run("b") == []
    assert layer.get_weights()[1].tolist() == [8.0]


def test_a_training_whose_upload_fails_says_so_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(Objects, "put", no_files)
    with pytest.raises(CheckpointWriteError, match="not in the object store") as error:
        fit(tmp_path)
    assert "only in" in str(error.value)
    assert far_steps(tmp_path) == []
    monkeypatch.undo()
    fit(tmp_path)  # trains nothing
    newest = committed_steps(tmp_path / "near")[-1]
    assert far_steps(tmp_path)[-1] == newest


def test_that_is_a_warning_where_the_user_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Objects, "put", no_files)
    caplog.set_level(logging.WARNING)
    fit(tmp_path, on_save_error="warn")
    assert "Not uploaded: step" in caplog.text


@pytest.mark.parametrize("slow", [False, True])
def test_a_preemption_uploads_what_it_has_time_for(tmp_path, monkeypatch, caplog, slow):
    put = Objects.put

    def slowly(self, name, content):
        time.sleep(60 if slow and "/" in name else 0)
        put(self, name, content)

    monkeypatch.setattr(Objects, "put", slowly)
    stop = fitting.Do(lambda: os.kill(os.getpid(), signal.SIGTERM))
    began = time.monotonic()
    with pytest.raises(resilient.Preempted) as end:
        fit(
            tmp_path,
            callbacks=[stop],
            save_freq="epoch",
            preemption=resilient.Preemption(grace_period=3.0),
        )
    assert end.value.saved
    assert time.monotonic() - began < 30
    newest = committed_steps(tmp_path / "near")[-1]
    assert (far_steps(tmp_path)[-1:] == [newest]) is not slow
    assert ("Not uploaded: step" in caplog.text) is slow


class Waiting(logging.Handler):
    """Calls a function when a training says that it waits for uploads."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def emit(self, record):
        if "Waiting for the upload" in record.getMessage():
            self._function()


@pytest.fixture
def stuck(monkeypatch, caplog):
    """Uploads do not end; what is given is called when they are waited for."""
    over, put = threading.Event(), Objects.put

    def stuck(self, name, content):
        if "/" in name:
            over.wait(60)
        put(self, name, content)

    def waiting(function):
        handlers.append(Waiting(function))
        logging.getLogger("resilient").addHandler(handlers[-1])

    handlers = []
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Objects, "put", stuck)
    monkeypatch.setattr(outcome, "_SAY_AFTER", 0.0)
    yield waiting
    over.set()
    for handler in handlers:
        logging.getLogger("resilient").removeHandler(handler)


def press(signum):
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize(
    ("signum", "error"),
    [(signal.SIGINT, Interrupted), (signal.SIGTERM, resilient.Preempted)],
)
def test_what_stops_a_training_stops_its_wait_for_uploads(
    tmp_path, stuck, caplog, signum, error
):
    """And loses nothing: the next run on this machine has nothing but the upload."""
    stuck(partial(press, signum))
    began = time.monotonic()
    with pytest.raises(error) as end:
        fit(tmp_path, preemption=resilient.Preemption(grace_period=1.5))
    assert time.monotonic() - began < 30
    assert end.value.saved
    (said,) = [line for line in caplog.messages if "Not uploaded: step" in line]
    assert " 18: only in" in said
    assert far_steps(tmp_path) == []


def test_a_second_ctrl_c_says_what_is_not_uploaded(tmp_path, stuck, caplog):
    stuck(lambda: threading.Timer(0.1, press, [signal.SIGINT]).start())
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as end:
        fit(tmp_path, callbacks=[fitting.Do(partial(press, signal.SIGINT))])
    assert not isinstance(end.value, Interrupted)
    assert time.monotonic() - began < 30
    assert caplog.text.count("Not uploaded: step") == 1


def test_a_loop_that_is_left_says_what_is_not_uploaded(tmp_path, stuck, caplog):
    run = resilient.Run(
        address(tmp_path),
        local_dir=tmp_path / "near",
        numbers=np.random.default_rng(0),
        save_freq=1,
        verbose=0,
    )
    for _, step, _ in run.loop(np.zeros((8, 1)), epochs=2, batch_size=2):
        if step == 3:
            break
    del _
    assert "Not uploaded: step" in caplog.text


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX
@pytest.mark.parametrize("save_freq", [4, 9], ids=["uploading", "writing"])
def test_a_forked_process_leaves_uploads_to_its_parent(
    tmp_path, stuck, caplog, save_freq
):
    """However it ends: it neither waits for them, nor says anything of them."""
    statuses = []

    def fork():
        if (pid := os.fork()) == 0:
            signal.alarm(20)
            caplog.clear()
            raise SystemExit
        statuses.append(os.waitpid(pid, 0)[1])

    stuck(partial(press, signal.SIGINT))
    try:
        fit(tmp_path, callbacks=[fitting.Do(fork, batch=3)], save_freq=save_freq)
    except SystemExit:
        if not statuses:  # the child
            os._exit("Not uploaded" in caplog.text)
    assert statuses == [0]


def test_all_fits_of_a_program_are_kept_in_a_store(tmp_path):
    def program(near):
        keras.utils.set_random_seed(7)
        net, losses = fitting.model(), []
        with resilient.enabled(address(tmp_path), local_dir=tmp_path / near):
            for _ in range(2):
                history = net.fit(**fitting.arguments(epochs=1))
                losses.append(history.history["loss"])
        return losses, fitting.values(net)

    expected, values = program("a")
    assert (tmp_path / "far" / "fits.json").is_file()
    again, mine = program("b")
    assert again == expected
    fitting.assert_equal(mine, values)


def test_a_loop_restores_what_only_the_store_has(tmp_path):
    def run(near, v):
        where = tmp_path / near
        return resilient.Run(address(tmp_path), local_dir=where, v=v, verbose=0)

    with run("near", keras.Variable(1.0, trainable=False)) as first:
        first.advance()
    found = keras.Variable(5.0, trainable=False)
    assert run("elsewhere", found).restore().step == 1
    assert float(found) == 1.0
