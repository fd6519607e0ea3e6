"""Scripts are proven, or not, with processes that are really killed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import keras
import pytest

from resilient.cli.main import main
from resilient.prove.experiment import Proof
from resilient.prove.recorded import Difference

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


@pytest.fixture(autouse=True)
def kept_signals():
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


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
    return code, told


def kept(tmp_path):
    """The runs that a proof has left."""
    return list((tmp_path / "temporary").iterdir())


def test_a_fit_is_proven(tmp_path, monkeypatch, capsys):
    script = FIT.replace("SEED", "0")
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "2")
    assert code == EQUAL, told
    assert told["steps"] == 9 * 24 + 2  # and the start, and the end of the script
    assert 1 <= len(told["kills"]) <= 2
    assert told["first"] is told["repeats"] is None
    assert kept(tmp_path) == []


@pytest.mark.long
def test_a_loop_is_proven_and_shortened(tmp_path, monkeypatch, capsys):
    script = LOOP.replace("FORGOTTEN", "0")
    monkeypatch.setenv("KERAS_MAX_EPOCHS", "6")
    monkeypatch.setenv("KERAS_MAX_STEPS_PER_EPOCH", "20")
    options = ("--kills", "1", "--seed", "5")
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
    assert any("variables/" in name for name in told["first"]["leaves"])
    assert "batch" not in told["first"]["leaves"]
    assert (told["repeats"], told["batches_repeat"]) == (True, True)
    assert (told["alone"], told["batches"]) == (None, None)


def test_data_without_a_seed(tmp_path, monkeypatch, capsys):
    script = FIT.replace("SEED", "")
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "1")
    assert code == DIFFERENT, told
    assert (told["repeats"], told["batches_repeat"]) == (False, False)
    assert told["alone"]["at"] == "step 1 (epoch 1, batch 1) of runs/a"
    assert told["alone"]["leaves"][0] == "batch"
    assert told["batches"]["at"] == told["alone"]["at"]


@pytest.mark.long
def test_weights_without_a_seed(tmp_path, monkeypatch, capsys):
    script = FIT.replace("SEED", "0").replace("keras.utils.set_random_seed(3)", "")
    script = script.replace("verbose=0", "verbose=0, shuffle=False")
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "1")
    assert code == DIFFERENT, told
    assert (told["repeats"], told["batches_repeat"]) == (False, True)
    assert told["alone"]["at"] == "step 0 (epoch 1, batch 0) of runs/a"
    assert all("variables/" in name for name in told["alone"]["leaves"][:1])


@pytest.mark.long
def test_a_callback_that_is_not_deterministic(tmp_path, monkeypatch, capsys):
    noise = """
import os
class Noise(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.params["steps"] == batch + 1:
            bias = self.model.layers[-1].bias
            bias.assign(bias + 1e-6 * os.urandom(1)[0])
history = """
    script = FIT.replace("SEED", "0").replace("\nhistory = ", noise)
    script = script.replace("verbose=0", "verbose=0, callbacks=[Noise()]")
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "1")
    assert code == DIFFERENT, told
    assert (told["repeats"], told["batches_repeat"]) == (False, True)
    assert told["alone"]["at"] == "step 24 (epoch 2, batch 0) of runs/a"
    (leaf,) = told["alone"]["leaves"]
    assert leaf.endswith("bias")


@pytest.mark.long
def test_a_resume_that_draws_other_data(tmp_path, monkeypatch, capsys):
    """A generator that counts where nobody sees it, in a run that accepts it."""
    batches = """
class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        global drawn
        drawn += 1
        rows = slice(4 * index, 4 * index + 4)
        return x[rows] + np.float32(drawn // 24), y[rows]
drawn = 0
history = """
    script = FIT.replace("SEED", "0").replace("\nhistory = ", batches)
    script = script.replace("model, x, y, batch_size=4", "model, Batches()")
    more = 'verbose=0, on_data_change="warn", on_inexact="warn", shuffle=False'
    script = script.replace("verbose=0", more)
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "2")
    assert code == DIFFERENT, told
    assert (told["repeats"], told["batches_repeat"]) == (True, False)
    assert told["first"]["leaves"][0] == "batch"
    assert told["batches"]["at"] == told["first"]["at"]


@pytest.mark.long
def test_a_loop_that_is_left_before_its_end(tmp_path, monkeypatch, capsys):
    left = "    if run.step == 140:\n        break\n"
    script = LOOP.replace("FORGOTTEN", "0") + left
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "2")
    assert code == EQUAL, told
    assert told["steps"] == 141


@pytest.mark.long
def test_a_rollback(tmp_path, monkeypatch, capsys):
    bad = "x[40] = np.nan\n"
    script = FIT.replace("SEED", "0").replace("y = (x", f"{bad}y = (x")
    more = "on_nan=resilient.Rollback(steps=2, skip=4, limit=20)"
    script = script.replace("verbose=0", f"verbose=0, {more}")
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


@pytest.mark.parametrize(
    ("found", "proven"),
    [
        ({}, False),
        ({"resumed": ["runs/a"]}, True),
        ({"resumed": ["runs/a"], "missing": ["step 3"]}, False),
        ({"resumed": ["runs/a"], "failed": 1}, False),
        ({"resumed": ["runs/a"], "first": Difference("step 3", ("batch",))}, False),
    ],
)
def test_only_a_resume_from_a_checkpoint_proves(found, proven):
    assert Proof(**found).equal == proven


@pytest.mark.long
def test_what_a_callback_does_at_the_end(tmp_path, monkeypatch, capsys):
    """It counts the epochs that it saw where nobody else sees them."""
    average = """
import functools
seen = functools.lru_cache(lambda epoch: epoch)
class Averaging(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen(epoch)
    def on_train_end(self, logs=None):
        count = seen.cache_info().currsize
        self.model.set_weights([each / count for each in self.model.get_weights()])
history = """
    script = FIT.replace("SEED", "0").replace("\nhistory = ", average)
    script = script.replace("verbose=0", "verbose=0, callbacks=[Averaging()]")
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "2")
    assert code == DIFFERENT, told
    assert told["first"]["at"] == "the end, step 216, of runs/a"
    assert told["repeats"] is told["batches_repeat"] is True


@pytest.mark.long
def test_a_script_that_trains_only_once(tmp_path, monkeypatch, capsys):
    done = "\nimport os\nif os.path.exists('done'): raise SystemExit\n"
    script = done + FIT.replace("SEED", "0") + "open('done', 'w')\n"
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "1")
    assert code == FAILED, told
    assert "but not when it was run again" in told["message"]


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


@pytest.mark.long
def test_a_run_that_never_resumes_and_a_process_that_ends_at_once(
    tmp_path, monkeypatch, capsys
):
    again = 'model, x, y, batch_size=4, epochs=1, verbose=0, checkpoint_dir="runs/b"'
    end = f'resilient.fit({again}, resume="never")\nimport os\nos._exit(0)\n'
    script = FIT.replace("SEED", "0") + end
    code, told = prove(tmp_path, monkeypatch, capsys, script, "--kills", "1")
    assert code == EQUAL, told
    (never,) = told["notes"]
    assert "resume of runs/b" in never


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
    with pytest.raises(SystemExit) as error:
        main(["prove", "--kills", "0", "--", "x"])
    assert error.value.code == USAGE
    assert main(["prove"]) == USAGE
    assert "There is no command; give one" in capsys.readouterr().err
    assert main(["prove", "--", str(tmp_path / "missing")]) == FAILED
    assert "The command cannot be started" in capsys.readouterr().err
