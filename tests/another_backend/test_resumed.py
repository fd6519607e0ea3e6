"""A run goes on with what another backend saved, where that is not installed."""

import itertools
import json
import os
import platform
import shutil

import keras
import numpy as np
import pytest
from support.manifests import replace

import resilient
from resilient.backends import BACKENDS
from resilient.cli.main import main as command
from resilient.errors import (
    BackendNotAvailableError,
    CheckpointMismatchError,
    CorruptCheckpointError,
    NotExactWarning,
    NotSupportedError,
)
from resilient.storage.layout import committed_name, committed_steps

from . import CHECKPOINTS, FIT, lose, need
from .program import BATCH, EPOCH, SAMPLES, data, loop, model, train, values
from .write import LOOP, STEP

pytestmark = [
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
    # Other versions of Keras than that which wrote them.
    pytest.mark.filterwarnings(
        "ignore:Not bit-exact. these settings changed:resilient.NotExactWarning"
    ),
    pytest.mark.xdist_group("another_backend"),  # share what was resumed
]

BACKEND = os.environ["KERAS_BACKEND"]
OTHERS = [name for name in BACKENDS if name != BACKEND]
ALLOW = {"backend"}


def copied(saver, run):
    """The run, as if it had been killed at the end of its first epoch."""
    shutil.copytree(CHECKPOINTS / saver / STEP, run / STEP)
    with np.load(CHECKPOINTS / saver / "end.npz") as end:
        return dict(end)


@pytest.fixture(scope="module", params=OTHERS)
def saver(request):
    need(request.param)
    return request.param


@pytest.fixture(scope="module")
def resumed(saver, tmp_path_factory):
    """The directory, what there was, what there is two epochs later, the warnings."""
    run = tmp_path_factory.mktemp("elsewhere") / "run"
    before = copied(saver, run)
    keras.utils.set_random_seed(9)
    with pytest.warns(NotExactWarning) as told:
        after = train(run, 3, allow=ALLOW)
    return run, before, after, told.list


def as_seeds(found, like):
    """Integers with a sign or without, as another array has them: seeds are 32 bits."""
    if like.dtype.kind == "f":
        return found
    return (found.astype("int64") & 0xFFFFFFFF).astype("uint32").astype(like.dtype)


def told(end, name):
    return json.loads(str(end["told"]))[name]


def test_every_variable_has_the_same_values(saver, tmp_path):
    expected = copied(saver, tmp_path)
    net = model()
    with pytest.raises(CheckpointMismatchError, match=r'allow=\{"backend"\}'):
        resilient.ResilientFit(net, checkpoint_dir=tmp_path).restore()
    resilient.ResilientFit(net, checkpoint_dir=tmp_path, allow=ALLOW).restore()
    found = values(net)
    for name, value in expected.items():
        if name != "told" and not name.startswith("metrics"):
            assert np.array_equal(as_seeds(found[name], value), value), name


def test_it_says_once_what_is_not_exact(saver, resumed):
    said = [str(each.message) for each in resumed[3]]
    (line,) = [each for each in said if "from step 6 with changes" in each]
    assert f"backend: the checkpoint has '{saver}', this run has '{BACKEND}'" in line
    manifest = json.loads((CHECKPOINTS / saver / FIT / "manifest.json").read_text())
    was, now = manifest["environment"]["python"], platform.python_version()
    # Another Python than that of the files is a change of settings, named by itself.
    python = (
        f"of this script:\n  python: the checkpoint has '{was}', this run has '{now}'"
    )
    others = [each for each in said if "Not bit-exact" in each and each != line]
    assert len(others) == (was != now)
    assert all(each.endswith(python) for each in others)


def test_the_epoch_before_it_stays_in_the_history(resumed):
    _, before, after, _ = resumed
    history = told(after, "history")
    for name, values_before in told(before, "history").items():
        assert history[name][:1] == values_before, name
        assert len(history[name]) == 3
    assert told(after, "batches")[:EPOCH] == told(before, "batches")


def test_each_sample_comes_once_in_each_epoch(resumed):
    batches = told(resumed[2], "batches")
    assert len(batches) == 3 * EPOCH
    for first in range(0, len(batches), EPOCH):
        epoch = itertools.chain(*batches[first : first + EPOCH])
        assert sorted(epoch) == list(range(SAMPLES))


def test_later_checkpoints_tell_of_it(saver, resumed, capsys):
    command(["show", str(resumed[0])])
    assert f"the checkpoint has '{saver}'" in capsys.readouterr().out


def test_from_then_on_it_is_exact_without_being_allowed_anything(
    saver, resumed, tmp_path
):
    copied(saver, tmp_path)
    keras.utils.set_random_seed(9)
    with pytest.warns(NotExactWarning, match="from step 6"):
        train(tmp_path, 2, allow=ALLOW)
    keras.utils.set_random_seed(10)
    again = train(tmp_path, 3)
    for name, value in resumed[2].items():
        assert np.array_equal(again[name], value), name


@pytest.mark.parametrize(
    "resume", [pytest.param(EPOCH, marks=pytest.mark.long), "best"]
)
def test_a_checkpoint_may_be_chosen(resumed, saver, tmp_path, resume):
    copied(saver, tmp_path)
    keras.utils.set_random_seed(9)
    keep = resilient.best(1, "loss", "min")
    with pytest.warns(NotExactWarning, match="from step 6"):
        chosen = train(tmp_path, 3, allow=ALLOW, resume=resume, keep=keep)
    for name, value in resumed[2].items():
        assert np.array_equal(chosen[name], value), name


@pytest.mark.parametrize("other", OTHERS)
def test_its_library_is_needed(other, monkeypatch, tmp_path):
    """Or the error says how to install it, before anything is changed."""
    copied(other, tmp_path)
    lose(monkeypatch, other)
    net = model()
    run = resilient.ResilientFit(net, checkpoint_dir=tmp_path, allow=ALLOW)
    with pytest.raises(BackendNotAvailableError, match=rf"pip install.*\[{other}\]"):
        run.restore()
    assert int(net.optimizer.iterations.value) == 0
    assert committed_steps(tmp_path) == [EPOCH]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("how", ["fit", "restore", "loop", "look"])
def test_unless_it_is_allowed_it_is_refused_before_it_is_read(
    other, how, monkeypatch, tmp_path
):
    """It is no damage, and the error names both ways out, with no note beside it."""
    step = LOOP if how in ("loop", "look") else EPOCH
    saved = CHECKPOINTS / other / ("loop" if step == LOOP else "")
    shutil.copytree(saved / committed_name(step), tmp_path / committed_name(step))
    lose(monkeypatch, other)
    net, (x, y) = model(), data()
    run = resilient.Run(tmp_path, model=net)
    do = {
        "fit": lambda: resilient.fit(net, x, y, checkpoint_dir=tmp_path, verbose=0),
        "restore": resilient.ResilientFit(net, checkpoint_dir=tmp_path).restore,
        "loop": lambda: list(run.loop((x, y), epochs=1)),
        "look": run.restore,
    }[how]
    with pytest.raises(CheckpointMismatchError) as found:
        do()
    said = str(found.value)
    assert f"trained on {other}, but this process uses {BACKEND}" in said
    assert f"KERAS_BACKEND={other} " in said
    assert "resilient export DIR --to m.keras" in said
    assert not hasattr(found.value, "__notes__")
    assert committed_steps(tmp_path) == [step]
    assert not (tmp_path / "quarantine").exists()


@pytest.mark.parametrize("other", OTHERS)
def test_what_several_processes_saved_is_refused(other, tmp_path):
    copied(other, tmp_path)
    position = tmp_path / STEP / "data/process-0-of-1.json"
    content = position.read_bytes()
    replace(tmp_path / STEP, "data/process-0-of-1.json", None)
    for number in range(2):
        replace(tmp_path / STEP, f"data/process-{number}-of-2.json", content)
    with pytest.raises(NotSupportedError, match="one process and one replica"):
        train(tmp_path, 2, allow=ALLOW)


def test_a_loop_goes_on_in_the_middle_of_an_epoch(saver, tmp_path):
    """With objects of Keras, and a generator of NumPy."""
    step = committed_name(LOOP)
    shutil.copytree(CHECKPOINTS / saver / "loop" / step, tmp_path / step)
    with np.load(CHECKPOINTS / saver / "loop" / "end.npz") as end:
        before = dict(end)
    run = resilient.Run(tmp_path, **objects())
    with pytest.raises(CheckpointMismatchError, match=r'allow=\{"backend"\}'):
        run.restore()
    mine = objects()
    with pytest.warns(NotExactWarning, match="from step 3"):
        resilient.Run(tmp_path, allow=ALLOW, **mine).restore()
    found = values(mine["net"])
    for name, value in before.items():
        if name in found:
            assert np.array_equal(as_seeds(found[name], value), value), name
    seeds = np.asarray(keras.ops.convert_to_numpy(mine["seeds"].state))
    assert np.array_equal(as_seeds(seeds, before["seeds"]), before["seeds"])
    with pytest.warns(NotExactWarning, match=f"checkpoint has '{saver}'"):
        after, firsts = loop(tmp_path, LOOP + 2, allow=ALLOW)
    assert firsts == [LOOP * BATCH, (LOOP + 1) * BATCH]
    drawn = np.random.default_rng(3).random(LOOP + 2)
    assert np.array_equal(after["drawn"], drawn)


def test_a_loop_with_objects_of_a_library_is_refused(saver, tmp_path):
    """They have no counterpart."""
    step = tmp_path / committed_name(LOOP)
    shutil.copytree(CHECKPOINTS / saver / "loop" / step.name, step)
    saved = json.loads((step / "run.json").read_text())
    saved["fingerprint"]["identity"]["objects"]["adam"] = "optimizer of its library"
    replace(step, "run.json", json.dumps(saved).encode())
    with pytest.raises(CheckpointMismatchError, match=r"adam.* this run has None"):
        resilient.Run(tmp_path, allow=ALLOW, **objects()).restore()


def objects():
    """As ``program.loop`` has them, at their start."""
    net = model()
    x, y = data()
    net.test_on_batch(x[:2], y[:2])
    net.reset_metrics()
    generator, seeds = np.random.default_rng(5), keras.random.SeedGenerator(6)
    return {"net": net, "generator": generator, "seeds": seeds}


@pytest.mark.parametrize("other", OTHERS)
def test_files_that_hold_something_else_are_damage(other, tmp_path):
    """Whatever the manifest says: nothing is done but another checkpoint looked for."""
    need(other)
    copied(other, tmp_path)
    names = {
        "tensorflow": "state.index",
        "torch": "state.pt",
        "jax": "state/_METADATA",
    }
    name = f"variables/{names[other]}"
    content = (tmp_path / STEP / name).read_bytes()
    replace(tmp_path / STEP, name, content[: len(content) // 2])
    with pytest.raises(CorruptCheckpointError):
        train(tmp_path, 2, allow=ALLOW)
