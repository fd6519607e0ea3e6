"""Checkpoints of every released schema are restored to the bit, and trained on."""

import os
import shutil

import keras
import numpy as np
import pytest
from kill.record import differences, load

import resilient
from resilient import CheckpointMismatchError, NotSupportedError, keras_internals
from resilient.backends import BACKENDS
from resilient.storage.layout import committed_name, committed_steps
from resilient.storage.manifest import SCHEMA

from .newer import VERSION, make_newer
from .program import PROGRAMS, STEP
from .write import HERE, SEED, trained

pytestmark = [
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
    # Other versions of Keras and of the backend than those that wrote them.
    pytest.mark.filterwarnings(
        "ignore:Not bit-exact. these settings changed:resilient.NotExactWarning"
    ),
    pytest.mark.usefixtures("repeating"),
    pytest.mark.xdist_group("released"),  # share what was resumed
]

SCHEMAS = range(1, SCHEMA + 1)
BACKEND = os.environ["KERAS_BACKEND"]
other_orders = (
    BACKEND != "tensorflow"
    and keras_internals.generation.orders != "the state of a random generator"
)


def there(schema, name):
    return HERE / f"schema-{schema}" / BACKEND / name


def copied(schema, name, run):
    """The run, as if it had been killed after this checkpoint."""
    step = committed_name(STEP)
    shutil.copytree(there(schema, name) / step, run / step)


@pytest.fixture(scope="module", params=PROGRAMS)
def name(request):
    if request.param != "variables" and other_orders:
        pytest.skip("this Keras draws the order of arrays in another way")
    return request.param


@pytest.fixture(scope="module", params=SCHEMAS)
def schema(request):
    return request.param


@pytest.fixture(scope="module")
def resumed(schema, name, tmp_path_factory):
    """What there is to see after the restore, and in the end."""
    run = tmp_path_factory.mktemp("released") / "run"
    copied(schema, name, run)
    return trained(PROGRAMS[name], run, seed=SEED + 1)


def test_restored(schema, name, resumed):
    expected, found = load(there(schema, name) / "saved.record"), resumed[0]
    # What releases of Keras add is not what the checkpoint could hold.
    assert (
        differences(expected, {k: v for k, v in found.items() if k in expected}) == []
    )


def test_the_batches_after_it_are_those_that_were_left(schema, name, resumed):
    expected, found = (
        {path: leaf for path, leaf in ended.items() if path.startswith("order")}
        for ended in (load(there(schema, name) / "ended.record"), resumed[1])
    )
    assert differences(expected, found) == []
    assert expected or name == "variables"


def test_ended(schema, name, resumed, tmp_path):
    """As the run that was not interrupted, where training has the same bits here."""
    files = [there(schema, name) / f"{what}.record" for what in ("saved", "ended")]
    saved, ended = map(load, files)
    here = trained(PROGRAMS[name], tmp_path / "run", SEED)
    if differences(saved, here[0]) or differences(ended, here[1]):
        pytest.skip("other versions or another processor: training has other bits")
    assert differences(ended, resumed[1]) == []


def test_fit_names_the_version_that_wrote_a_newer_one(tmp_path):
    run = tmp_path / "run"
    copied(SCHEMA, "fit", run)
    make_newer(run / committed_name(STEP))
    with pytest.raises(NotSupportedError, match=VERSION):
        trained(PROGRAMS["fit"], run, SEED)
    assert committed_steps(run) == [STEP]
    assert not (run / "quarantine").exists()
    assert resilient.ResilientFit(None, checkpoint_dir=run).checkpoints == []


OTHERS = [name for name in BACKENDS if name != BACKEND]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("how", ["fit", "restore", "loop", "look"])
def test_what_another_backend_trained_is_refused_before_it_is_read(
    other, how, tmp_path
):
    """It is no damage, and the error names both ways out, with no note beside it."""
    kind, step = "loop" if how in ("loop", "look") else "fit", committed_name(STEP)
    saved = HERE / f"schema-{SCHEMA}" / other / kind / step
    shutil.copytree(saved, tmp_path / step)
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
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
    assert committed_steps(tmp_path) == [STEP]
    assert not (tmp_path / "quarantine").exists()
