"""Scripts are proven, or not, with processes that are really killed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import keras
import pytest

from resilient.cli import proof as proof_text
from resilient.cli.main import main
from resilient.prove.proof import Kill, Options, Proof
from resilient.prove.recorded import Place
from resilient.prove.script import Ending

pytestmark = pytest.mark.spread

EQUAL, DIFFERENT, USAGE, FAILED = 0, 1, 2, 5

FIT = """
import keras, numpy as np, resilient
keras.utils.set_random_seed(3)
rng = np.random.default_rng(SEED)
x = rng.normal(size=(96, 8)).astype("float32")
y = (x.sum(1) > 0).astype("int32")
model = keras.Sequential([
    keras.Input((8,)), keras.layers.Dropout(0.3), keras.layers.Dense(2)
])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss)
history = resilient.fit(
    model, x, y, batch_size=4, epochs=9, verbose=0, checkpoint_dir="runs/a"
)
print(history.history["loss"][-1])
"""
PLAIN = FIT.replace("resilient.fit(\n    model, ", "model.fit(").replace(
    ', checkpoint_dir="runs/a"', ""
)
LOOP = """
import keras, numpy as np, resilient
keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.train_on_batch(x[:4], x[:4].sum(1, keepdims=True))
drawn = 0
def noise():
    global drawn
    drawn += 1
    return drawn * FORGOTTEN
run = resilient.Run("runs/loop", model=model, verbose=0)
for _, step, batch in run.loop(x, epochs=9, batch_size=4):
    batch = np.asarray(batch) + np.float32(noise())
    run.log(loss=model.train_on_batch(batch, batch.sum(1, keepdims=True)))
"""


def prove(tmp_path, monkeypatch, capsys, script, *options):
    """Exit code, and what was told of the script on this backend."""
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "temporary").mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", keras.backend.backend())
    command = [sys.executable, "train.py"]
    code = main(["prove", *options, "--json", "--", *command])
    told = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "runs").exists()
    return code, told.get("script", told)


def kept(tmp_path):
    """The runs that a proof has left."""
    return list((tmp_path / "temporary").iterdir())


def test_a_fit_is_proven(tmp_path, monkeypatch, capsys):
    script = FIT.replace("SEED", "0")
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "2")
    assert code == EQUAL, told
    assert told["steps"] == 9 * 24 + 2  # and the start, and the end of the script
    assert 1 <= len(told["kills"]) <= 2
    (ends,) = told["ends"].values()
    assert ends["equal"]
    assert ends["a"]["step"] == 9 * 24
    assert kept(tmp_path) == []


@pytest.mark.long
def test_a_loop_is_proven_and_shortened(tmp_path, monkeypatch, capsys):
    script = LOOP.replace("FORGOTTEN", "0")
    options = ("--kills", "1", "--epochs", "6", "--steps", "20", "--seed", "5")
    code, told = prove(tmp_path, monkeypatch, capsys, script, *options)
    assert code == EQUAL, told
    assert told["steps"] == 6 * 20 + 2


@pytest.mark.long
def test_every_fit_of_a_script_that_knows_nothing_of_us(tmp_path, monkeypatch, capsys):
    script = PLAIN.replace("SEED", "0")
    assert "resilient.fit" not in script
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--save", "--kills", "1")
    assert code == EQUAL, told


@pytest.mark.long
def test_a_loop_that_forgets_what_it_counted(tmp_path, monkeypatch, capsys):
    script = LOOP.replace("FORGOTTEN", "0.01")
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "1")
    assert code == DIFFERENT, told
    assert told["first"] is not None
    assert "step" in told["first"]["at"]
    assert any("variables/" in name for name in told["first"]["leaves"])
    (ends,) = told["ends"].values()
    assert not ends["equal"]


@pytest.mark.long
def test_data_without_a_seed(tmp_path, monkeypatch, capsys):
    script = FIT.replace("SEED", "")
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "1")
    assert code == DIFFERENT, told
    assert "data is not seeded" in told["reasons"][0]["text"]
    assert "train.py:4: np.random.default_rng()" in told["reasons"][0]["lines"]


@pytest.mark.long
def test_only_the_data(tmp_path, monkeypatch, capsys):
    script = FIT.replace("SEED", "0")
    options = ("--data-only", "--kills", "1")
    code, told = prove(tmp_path, monkeypatch, capsys, script, *options)
    assert code == EQUAL, told
    assert told["steps"] == 9 * 24
    assert told["ends"] == {}
    (note,) = told["notes"]  # it has no loss to print
    assert "fails with status 1" in note


@pytest.mark.long
def test_a_loop_that_is_left_before_its_end(tmp_path, monkeypatch, capsys):
    left = "    if run.step == 140:\n        break\n"
    script = LOOP.replace("FORGOTTEN", "0") + left
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "2")
    assert code == EQUAL, told
    assert told["ends"] == {}
    (note,) = told["notes"]
    assert "left before its end" in note


@pytest.mark.long
def test_a_rollback(tmp_path, monkeypatch, capsys):
    bad = "x[40] = np.nan\n"
    script = FIT.replace("SEED", "0").replace("y = (x", f"{bad}y = (x")
    script = script.replace("verbose=0", 'verbose=0, on_nan="rollback"')
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "2")
    assert code == EQUAL, told


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "raise SystemExit('no data')",
            "The script fails even without a kill, with status 1",
        ),
        ("print('trained nothing')", "did not train with resilient.fit"),
    ],
)
def test_nothing_to_prove(tmp_path, monkeypatch, capsys, script, words):
    code, told = prove(tmp_path, monkeypatch, capsys, script)
    assert code == FAILED
    assert words in told["message"]
    assert len(kept(tmp_path)) == 1


def test_each_backend_is_told_of_once(tmp_path, monkeypatch, capsys):
    """One that fails leaves the others."""
    script = "import os; raise SystemExit(os.environ['KERAS_BACKEND'])"
    both = ("--backend", "jax", "--backend", "torch", "--backend", "jax")
    code, told = prove(tmp_path, monkeypatch, capsys, script, *both)
    assert code == FAILED
    assert list(told) == ["jax", "torch"]
    for backend, found in told.items():
        assert backend in found["message"]


def ending(phase="training", at=5, went_on=True):
    place = Place("runs/a", at, 1, 2)
    runs = frozenset({"runs/a"} if went_on else ())
    restored = {"runs/a": place} if went_on else {}
    return Ending(-9, True, phase, place, restored, runs, {}, Path("output"))


@pytest.mark.parametrize(
    ("kills", "proven"),
    [
        ([], False),
        ([Kill(ending())], False),
        ([Kill(ending(), ending(went_on=False))], False),  # it started over
        ([Kill(ending("ended"), ending())], False),
        ([Kill(ending(), ending())], True),
    ],
)
def test_only_a_resume_from_a_checkpoint_proves(capsys, kills, proven):
    proof = Proof(Options(["train"]), kills=kills, over=True)
    assert proof.equal == proven
    proof_text.report(proof)
    told = capsys.readouterr().out
    assert told.startswith("Proven" if proven else "NOT proven")
    proof.missing.append("step 3")
    assert not proof.equal


@pytest.mark.long
def test_what_a_callback_does_at_the_end(tmp_path, monkeypatch, capsys):
    """It averages the weights of all epochs, which it keeps where nobody sees them."""
    average = """
kept = []
class Averaging(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        kept.append(self.model.get_weights())
    def on_train_end(self, logs=None):
        self.model.set_weights([np.mean(each, 0) for each in zip(*kept)])
history = """
    script = FIT.replace("SEED", "0").replace("\nhistory = ", average)
    script = script.replace("verbose=0", "verbose=0, callbacks=[Averaging()]")
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "2")
    assert code == DIFFERENT, told
    assert told["first"]["at"] == "the end of the script of runs/a"
    assert "no checkpoint holds" in told["reasons"][0]["text"]


@pytest.mark.long
def test_a_script_that_trains_only_once(tmp_path, monkeypatch, capsys):
    done = "\nimport os\nif os.path.exists('done'): raise SystemExit\n"
    script = done + FIT.replace("SEED", "0") + "open('done', 'w')\n"
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "1")
    assert code == DIFFERENT, told
    assert told["missing"] == ["runs/a"]
    assert told["reasons"][0]["lines"] == ["train.py:3: os.path.exists('done')"]


def test_a_signal_ends_the_script_too(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    command = ["-m", "resilient", "prove", "--", sys.executable, "train.py"]
    pid, until = tmp_path / "pid", time.monotonic() + 60
    prover = subprocess.Popen([sys.executable, *command], cwd=tmp_path)
    try:
        while not (pid.exists() and pid.read_text()):
            assert time.monotonic() < until
            time.sleep(0.05)
        prover.terminate()
        assert prover.wait(60) == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
    finally:
        prover.kill()


def test_where_the_run_that_was_killed_resumed():
    assert Kill(ending(), ending(at=3)).resumed.startswith("step 3")
    assert Kill(ending(), ending(went_on=False)).resumed == "the start of runs/a"
    other = replace(ending(), reached=Place("runs/b", 1, 0, 1))
    assert Kill(other, ending()).resumed == "the start of runs/b"
    failed = replace(ending(went_on=False), reached=None)
    assert Kill(ending(), failed).resumed == ""
    assert Kill(ending()).resumed == ""


@pytest.mark.long
def test_a_run_that_never_resumes_and_a_process_that_ends_at_once(
    tmp_path, monkeypatch, capsys
):
    again = 'model, x, y, batch_size=4, epochs=1, verbose=0, checkpoint_dir="runs/b"'
    end = f'resilient.fit({again}, resume="never")\nimport os\nos._exit(0)\n'
    script = FIT.replace("SEED", "0") + end
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "1")
    assert code == EQUAL, told
    never, unseen = told["notes"]
    assert "resume of runs/b" in never
    assert "variables of runs/a, runs/b was not compared" in unseen


@pytest.mark.long
def test_training_in_a_child_process(tmp_path, monkeypatch, capsys):
    """Which runs no exit handler of Python's own."""
    inside = FIT.replace("SEED", "0").strip().replace("\n", "\n    ")
    start = "multiprocessing.get_context('fork').Process(target=train)"
    script = (
        f"import multiprocessing\ndef train():\n    {inside}\n"
        f"if __name__ == '__main__':\n    one = {start}\n"
        "    one.start()\n    one.join()\n    raise SystemExit(one.exitcode)\n"
    )
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "1")
    assert code == EQUAL, told
    assert told["notes"] == []
    assert told["steps"] == 9 * 24 + 2


def test_wrong_usage(tmp_path, capsys):
    for wrong in ([], ["--kills", "0", "--", "x"], ["--backend", "mxnet", "--", "x"]):
        with pytest.raises(SystemExit) as error:
            main(["prove", *wrong])
        assert error.value.code == USAGE
    (tmp_path / "there").touch()
    assert main(["prove", "--scratch", str(tmp_path), "--", "x"]) == USAGE
    assert "not empty" in capsys.readouterr().err
    assert main(["prove", "--", str(tmp_path / "missing")]) == FAILED
