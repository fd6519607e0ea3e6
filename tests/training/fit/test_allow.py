"""A run goes on with what ``allow`` lets change, and from then on as exactly as any."""

import json
import shutil
import signal
from pathlib import Path

import keras
import numpy as np
import pytest
from support import fitting
from support.fitting import Interrupt
from support.gang import run_alone
from support.waited import each_save_waited_for

import resilient
from resilient import CheckpointMismatchError, NotExactWarning
from resilient.cli.main import main
from resilient.training.options import NAMES

pytestmark = [
    pytest.mark.spread,
    pytest.mark.usefixtures("seeded"),
    pytest.mark.waits,
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

X, Y = fitting.data()
MORE = fitting.data(40, seed=3)


def stopping():
    return keras.callbacks.EarlyStopping("loss", patience=5)


@pytest.fixture(scope="module")
def left(tmp_path_factory, repeating):
    """What a run left that was interrupted in its second epoch, at 8 samples of it."""
    directory = tmp_path_factory.mktemp("allow") / "run"
    with each_save_waited_for():
        fitting.interrupted(directory, callbacks=[stopping()], save_freq=2)
    return directory


@pytest.fixture
def directory(left, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(left, tmp_path / "run"))


def tanh():
    found = fitting.layers()
    found[1] = keras.layers.Dense(2, activation="tanh")
    return found


def best():
    return keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9)


# What the script changes: how it makes the model, what it gives to fit, and its
# callbacks.
CHANGES = {
    "batch_size": (fitting.model, {"batch_size": 2}, [stopping]),
    "batch_size to fewer": (fitting.model, {"batch_size": 8}, [stopping]),
    "callbacks": (fitting.model, {}, [best, stopping]),
    "callbacks without": (fitting.model, {}, []),
    "config": (lambda: fitting.model(of=tanh), {}, [stopping]),
    "data": (fitting.model, {"x": MORE[0], "y": MORE[1]}, [stopping]),
    "learning_rate": (
        lambda: fitting.model(optimizer=keras.optimizers.Adam(0.25)),
        {},
        [stopping],
    ),
    "metrics": (lambda: fitting.model(metrics=["mae"]), {}, [stopping]),
    "optimizer": (lambda: fitting.model(optimizer="sgd"), {}, [stopping]),
}


# Each backend has variables of another layout; loops show its batches.
OF_EACH = [
    pytest.param(name, marks=pytest.mark.everywhere) if name == "optimizer" else name
    for name in CHANGES
]


def go_on(directory, change, *at, **given):
    """Run again with a change; interrupted there, if anywhere."""
    make, changed, callbacks = CHANGES[change]
    net = make()
    callbacks = [Interrupt(*at), *(each() for each in callbacks)]
    given = {"callbacks": callbacks, "save_freq": 1, **changed, **given}
    if not at:
        return net, fitting.fit(net, directory, **given).history
    with pytest.raises(fitting.Interrupted):
        fitting.fit(net, directory, **given)
    return net, None


def allowed(directory):
    """What the newest checkpoint tells of."""
    newest = max(directory.glob("step-*"))
    return json.loads((newest / "run.json").read_text())["allowed"]


@pytest.mark.parametrize("change", OF_EACH)
def test_a_change_is_said_once_and_the_run_is_exact_from_there(
    directory, tmp_path, change
):
    name = change.split(" ")[0]
    other = Path(shutil.copytree(directory, tmp_path / "other"))
    with pytest.warns(NotExactWarning, match="continues from step 8") as found:
        net, history = go_on(directory, change, allow={name})
    about = [str(w.message) for w in found if "`allow`" in str(w.message)]
    assert len(about) == 1
    tell = allowed(directory)
    assert {(entry["step"], entry["of"]) for entry in tell} == {(8, name)}
    assert all(f"{entry['line']} (" in about[0] for entry in tell)
    assert len(history["loss"]) == 3

    fitting.other_seed()
    with pytest.warns(NotExactWarning, match="continues from step 8"):
        go_on(other, change, 1, None, allow={name})
    go_on(other, change, 2, 1)  # nothing differs any more: no need to allow it
    again, resumed = go_on(other, change, allow={name})
    assert resumed == history
    fitting.assert_equal(net, again)
    assert allowed(other) == tell


def test_each_change_is_refused_without_it_and_the_error_names_it(directory):
    for change in CHANGES:
        name = change.split(" ")[0]
        if name == "learning_rate":  # the checkpoint's wins
            continue
        with pytest.raises(CheckpointMismatchError) as found:
            go_on(directory, change)
        assert f'allow={{"{name}"}}' in str(found.value)
        with pytest.raises(CheckpointMismatchError):
            go_on(directory, change, allow=set(NAMES) - {name})


@pytest.mark.parametrize("built", [True, False])
def test_a_width_cannot_be_allowed(directory, built):
    """The weights do not fit: the error names the layer, and does not suggest it."""
    of = fitting.layers(width=5)
    with pytest.raises(CheckpointMismatchError, match="has 2, this run has 5") as found:
        fitting.fit(
            fitting.model(of=lambda: of[0 if built else 1 :]),
            directory,
            callbacks=[Interrupt(), stopping()],
            allow={"config"},
        )
    assert "allow=" not in str(found.value)


def test_several_changes_add_up_and_show_lists_them(directory, capsys):
    with pytest.warns(NotExactWarning, match="continues from step 8"):
        go_on(directory, "metrics", 1, 4, allow={"metrics", "batch_size"})
    with pytest.warns(NotExactWarning, match="continues from step"):
        go_on(directory, "batch_size", allow={"metrics", "batch_size"})
    assert [entry["of"] for entry in allowed(directory)] == [
        "metrics",
        *["batch_size", "metrics"],
    ]
    assert main(["show", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["allowed"] == allowed(directory)
    assert main(["show", str(directory)]) == 0
    shown = capsys.readouterr().out
    assert "changed on purpose at step 8: metrics: the checkpoint has " in shown


def test_what_begins_as_new_and_which_value_wins(directory):
    with pytest.warns(NotExactWarning):
        net, _ = go_on(directory, "learning_rate", allow={"learning_rate"})
    assert float(keras.ops.convert_to_numpy(net.optimizer.learning_rate)) == 0.25


def test_a_batch_size_continues_after_the_samples_that_are_trained(directory):
    seen = Interrupt()
    with pytest.warns(NotExactWarning):
        go_on(
            directory,
            "batch_size",
            callbacks=[seen, stopping()],
            allow={"batch_size"},
        )
    assert [batch for epoch, batch in seen.seen if epoch == 1] == list(range(4, 11))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"batch_size": 3},
            "8 samples of this epoch were already trained, which is not a",
        ),
        (
            {"x": X[:8], "y": Y[:8]},
            "8 samples of this epoch were already trained, and the data",
        ),
        ({"shuffle": False}, "the rest of an epoch cannot be shuffled"),
    ],
)
def test_where_it_cannot_change_in_mid_epoch_it_says_so(directory, given, why):
    allow = {"batch_size", "data"}
    with pytest.raises(CheckpointMismatchError, match="in the middle of an epoch") as e:
        go_on(directory, "config", **given, allow={*allow, "config"})
    assert why in str(e.value)
    assert "resume=<step>" in str(e.value)
    with pytest.warns(NotExactWarning, match="continues from step 6"):
        go_on(directory, "config", **given, allow={*allow, "config"}, resume=6)


def test_with_steps_per_epoch(tmp_path):
    """Batches of other sizes: in none of its places where epochs are not passes."""

    steps = {"steps_per_epoch": fitting.STEPS // 2}

    def go_on(**given):
        fitting.fit(
            fitting.model(),
            tmp_path,
            allow={"batch_size", "callbacks"},
            **steps,
            **given,
        )

    fitting.interrupted(tmp_path, 1, 1, save_freq=1, keep=9, **steps)
    alike = "batches of an epoch are all alike"
    with pytest.raises(CheckpointMismatchError, match=alike):
        go_on(batch_size=2, resume=2)
    with pytest.raises(CheckpointMismatchError, match="continues the same pass"):
        go_on(batch_size=2, resume=fitting.STEPS // 2)


def test_data_of_another_kind_begins_with_an_epoch(directory):
    def batches():
        while True:
            yield MORE[0][:5], MORE[1][:5]

    given = {"x": batches(), "y": None, "batch_size": None, "shuffle": False}
    with pytest.raises(CheckpointMismatchError, match="only arrays can change"):
        go_on(directory, "data", **given, allow={"data"})


def test_a_name_that_means_nothing_lists_those_there_are(tmp_path):
    with pytest.raises(ValueError, match="that is unknown here") as found:
        resilient.ResilientFit(
            fitting.model(), checkpoint_dir=tmp_path, allow={"callback"}
        )
    assert all(name in str(found.value) for name in NAMES)
    with pytest.raises(TypeError, match="must be a set of names"):
        resilient.fit(fitting.model(), X, Y, checkpoint_dir=tmp_path, allow="data")
    assert not np.any(list(tmp_path.glob("step-*")))


PROGRAM = """
import os, signal, sys
import keras
import numpy as np
import resilient
from support import fitting
from support.waited import wait_for_each_save

wait_for_each_save()
directory, size, kill, out = sys.argv[1:]


class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if f"{self.epoch}:{batch}" == kill:
            os.kill(os.getpid(), signal.SIGKILL)


net = fitting.model(seed=len(kill), run_eagerly=False)
resilient.fit(
    net,
    checkpoint_dir=directory,
    save_freq=2,
    allow={"batch_size"},
    **fitting.arguments(batch_size=int(size), callbacks=[Kill()]),
)
np.savez(out, *fitting.values(net))
"""


@pytest.mark.long  # tests/kill/test_allow.py kills others
def test_killed_for_real_after_a_change_it_ends_with_the_same_bytes(tmp_path):
    """Two more attempts after the one that changed, each killed."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    def attempt(place, size, kill="", out=""):
        status, told = run_alone(script, place, size, kill, out)
        assert status == (-signal.SIGKILL if kill else 0), told
        return told

    one, two = tmp_path / "one", tmp_path / "two"
    attempt(one, 4, "1:4")
    shutil.copytree(one, two)
    ended = [str(tmp_path / f"{name}.npz") for name in ("one", "two")]
    said = attempt(one, 2, "", ended[0])
    assert "with changes that `allow` accepts" in said
    attempt(two, 2, "1:9")
    attempt(two, 2, "2:6")
    assert "allow" not in attempt(two, 2, "", ended[1])
    with np.load(ended[0]) as expected, np.load(ended[1]) as found:
        assert expected.files == found.files
        for name in expected.files:
            assert np.array_equal(expected[name], found[name])
