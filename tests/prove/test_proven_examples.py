"""The examples are proven, each on the backends that it is for.

Not those that kill and restart processes of their own.
"""

import shutil
import sys

import keras
import pytest
from support import EXAMPLES

from resilient.cli.main import main

pytestmark = pytest.mark.long

BACKEND = keras.backend.backend()
OF = {
    "digits.py": ("tensorflow", "jax", "torch"),
    "gan.py": ("tensorflow",),
    "jax_loop.py": ("jax",),
    "tensorflow_guide.py": ("tensorflow",),
    "torch_loop.py": ("torch",),
}
RUN = ("-m", "resilient", "run", "--nproc", "2", "--", sys.executable)


def prove(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", BACKEND)
    monkeypatch.setenv("KERAS_MAX_EPOCHS", "2")
    code = main(["prove", "--kills", "3", "--", *command])
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "name", [n for n, backends in OF.items() if BACKEND in backends]
)
def test_an_example(tmp_path, monkeypatch, capsys, name):
    command = (sys.executable, str(EXAMPLES / name))
    monkeypatch.setenv("KERAS_MAX_STEPS_PER_EPOCH", "20")
    prove(tmp_path, monkeypatch, capsys, command)


def test_two_workers_and_their_supervisor(tmp_path, monkeypatch, capsys):
    """All are killed at once, as by a power cut: none may be left over."""
    shutil.copy(EXAMPLES / "multi_worker.py", tmp_path)
    command = (sys.executable, *RUN, "multi_worker.py")
    prove(tmp_path, monkeypatch, capsys, command)
