"""A checkpoint of another run is refused; what may change does not get in the way."""

import json
import logging
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from support import fitting
from support.checkpoint_samples import commit
from support.fitting import Interrupt
from support.waited import each_save_waited_for

from resilient import CheckpointMismatchError, NotExactWarning, ResilientFit
from resilient.storage.store import Store

pytestmark = [
    pytest.mark.spread,
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


def stopping(patience=5):
    return keras.callbacks.EarlyStopping("loss", patience=patience)


@pytest.fixture(scope="module")
def left(tmp_path_factory, repeating):
    """What a run left that was interrupted in its second epoch."""
    directory = tmp_path_factory.mktemp("mismatch") / "run"
    with each_save_waited_for():
        fitting.interrupted(directory, callbacks=[stopping()])
    return directory


@pytest.fixture
def directory(left, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(left, tmp_path / "run"))


def resume(net, directory, **given):
    """Run again as ``left`` was, but for what is given."""
    callbacks = given.pop("callbacks", [Interrupt(), stopping()])
    return fitting.fit(net, directory, callbacks=callbacks, save_freq=4, **given)


def files(directory):
    """Names and bytes of all checkpoints."""
    return {
        path: path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in ("events.jsonl", "heartbeat", "lock")
    }


def edited(directory, change):
    """Change ``run.json`` of the newest checkpoint, as another writer had made it."""
    store = Store(directory)
    checkpoint = store.checkpoints()[-1]
    source = shutil.copytree(checkpoint.path, directory.parent / "source")
    (source / "manifest.json").unlink()
    run = json.loads((source / "run.json").read_text())
    change(run)
    (source / "run.json").write_text(json.dumps(run))

    def write(staging):
        shutil.copytree(source, staging, dirs_exist_ok=True)

    commit(
        store,
        checkpoint.progress,
        write,
        metrics=checkpoint.metrics,
        finished=checkpoint.finished,
        environment=checkpoint.environment,
    )


def set_fact(kind, name, value):
    """A change that sets a fact of the checkpoint's fingerprint."""

    def change(run):
        assert name in run["fingerprint"][kind]
        run["fingerprint"][kind][name] = value

    return change


# What is refused ------------------------------------------------------------------


def refused(directory, net=None, **given):
    """Run again; the lines of the refusal, once it is clear that nothing changed."""
    net = net or fitting.model()
    # Built whole, so that Keras's fit draws nothing to build it.
    net.fit(*(array[:8] for array in fitting.data()), batch_size=4, verbose=0)
    callbacks = given.setdefault("callbacks", [Interrupt(), stopping()])
    attributes = [dict(vars(callback)) for callback in callbacks]
    before = fitting.values(net), fitting.random_state(), files(directory)
    with pytest.raises(CheckpointMismatchError, match="Nothing was changed") as found:
        resume(net, directory, **given)
    assert (fitting.random_state(), files(directory)) == before[1:]
    fitting.assert_equal(before[0], net)
    assert net._initial_epoch is None
    for old, callback in zip(attributes, callbacks, strict=True):
        new = {k: v for k, v in vars(callback).items() if k not in _SET_BY_KERAS}
        assert new == {k: v for k, v in old.items() if k not in _SET_BY_KERAS}
    what, lines = str(found.value).split("\nReceived:\n  ")
    assert str(directory / "step-00000008") in what
    *lines, todo = lines.split("\n")
    assert "checkpoint_dir" in todo
    assert 'resume="never"' in todo
    return [line.strip() for line in lines]


# When the callbacks are listed, before training begins.
_SET_BY_KERAS = ("_model", "params")


def layers(*more, **changed):
    """A way to make the usual layers and more of them."""
    return lambda: [
        *fitting.layers(**changed)[:-1],
        *(layer() for layer in more),
        fitting.layers()[-1],
    ]


def test_an_added_layer_is_refused(directory):
    dense = layers(lambda: keras.layers.Dense(2))
    lines = refused(directory, fitting.model(of=dense))
    assert lines == ["layer 4: the checkpoint has None, this run has 'Dense'"]


def test_a_changed_shape_is_refused_by_name(directory):
    """And nothing that follows from it, such as the shapes of variables."""
    assert refused(directory, fitting.model(of=layers(width=5))) == [
        "layer 1 (Dense).units: the checkpoint has 2, this run has 5"
    ]


def test_a_changed_dtype_policy_is_refused(directory):
    policy = "mixed_bfloat16"
    halves = layers()()
    halves[1] = keras.layers.Dense(2, activation="relu", dtype=policy)
    lines = refused(directory, fitting.model(of=lambda: halves))
    (line,) = lines
    assert line == (
        "layer 1 (Dense).dtype_policy: the checkpoint has 'float32', this run has "
        "'mixed_bfloat16'"
    )


def test_another_optimizer_is_refused(directory):
    lines = refused(directory, fitting.model(optimizer="sgd"))
    assert lines == ["optimizer: the checkpoint has ['Adam'], this run has ['SGD']"]


def test_another_class_of_model_is_refused(directory):
    class Mine(keras.Sequential):
        pass

    lines = refused(directory, fitting.model(cls=Mine))
    assert lines == ["model: the checkpoint has 'Sequential', this run has 'Mine'"]


def test_other_callbacks_are_refused(directory):
    plateau = keras.callbacks.ReduceLROnPlateau("loss")
    mine = f"{Interrupt.__module__}.Interrupt with state_dict()"
    stops = "keras.callbacks.EarlyStopping of 'loss', mode 'auto', min_delta 0"
    reduces = (
        "keras.callbacks.ReduceLROnPlateau of 'loss', mode 'auto', min_delta 0.0001"
    )
    assert refused(directory, callbacks=[Interrupt(), plateau]) == [
        f"callbacks: {stops} removed; {reduces} added"
    ]
    assert refused(directory, callbacks=[stopping(), Interrupt()]) == [
        (
            "callbacks: the checkpoint has them in a different order "
            f"({mine}, {stops}, keras.callbacks.History)"
        )
    ]
    assert refused(directory, callbacks=[Interrupt()]) == [
        f"callbacks: {stops} removed"
    ]
    assert refused(directory, callbacks=[Interrupt(), stopping(), plateau]) == [
        f"callbacks: {reduces} added"
    ]


def test_a_callback_that_had_no_state_may_be_gone(directory):
    expected, net = fitting.model(), fitting.model()
    expected.fit(**fitting.arguments(callbacks=[stopping()]))
    gone = "Interrupt was removed; it had no state"
    with pytest.warns(NotExactWarning, match=gone) as found:
        resume(net, directory, callbacks=[stopping()])
    assert len([each for each in found if "removed" in str(each.message)]) == 1
    fitting.assert_equal(expected, net)


X, Y = fitting.data()
LAST_OTHER = np.where(np.arange(22)[:, None] == 21, X + 1, X)


def changed(name, *given):
    """Two arrays, or the lines of their difference."""
    was, now = (
        f"'{each.shape} {each.dtype}, checksum " if hasattr(each, "shape") else each
        for each in given
    )
    return f"data {name}: the checkpoint has {was}", f", this run has {now}"


FEWER = ("data samples: the checkpoint has 22, this run has 21", "")
DATA = {
    "length": (
        {"x": X[:-1], "y": Y[:-1]},
        [FEWER, changed("x", X, X[:-1]), changed("y", Y, Y[:-1])],
    ),
    "shape": (
        {"y": np.repeat(Y, 2, axis=1)},
        [changed("y", Y, np.repeat(Y, 2, axis=1))],
    ),
    "dtype": ({"y": Y.astype("int32")}, [changed("y", Y, Y.astype("int32"))]),
    "content": ({"x": LAST_OTHER}, [changed("x", X, X)]),
    "order": ({"x": X[::-1]}, [changed("x", X, X)]),
    "weights": (
        {"sample_weight": np.ones(22)},
        [changed("sample_weight", None, np.ones(22, "float32"))],
    ),
    "class weights": (
        {"y": Y > 0, "class_weight": {0: 1, 1: 2}},
        [
            changed("y", Y, Y > 0),
            changed("sample_weight", None, np.ones(22, "float32")),
        ],
    ),
    "split": (
        {"validation_split": 0.5},
        [
            ("data samples: the checkpoint has 22, this run has 11", ""),
            changed("x", X, X[:11]),
            changed("y", Y, Y[:11]),
        ],
    ),
    "batch_size": (
        {"batch_size": 11},
        [("data batch_size: the checkpoint has 4, this run has 11", "")],
    ),
    "no shuffle": (
        {"shuffle": False},
        [("data shuffle: the checkpoint has True, this run has False", "")],
    ),
    "other shuffle": (
        {"shuffle": "batch"},
        [("data shuffle: the checkpoint has True, this run has 'batch'", "")],
    ),
    "steps_per_epoch": (
        {"steps_per_epoch": 3},
        [("steps_per_epoch: the checkpoint has None, this run has 3", "")],
    ),
    "initial_epoch": (
        {"initial_epoch": 1},
        [("initial_epoch: the checkpoint has 0, this run has 1", "")],
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_other_data_or_settings_of_it_are_refused(directory, name):
    given, expected = DATA[name]
    lines = refused(directory, **given)
    for line, (begin, then) in zip(lines, expected, strict=True):
        assert line.startswith(begin)
        assert then in line


def test_an_initial_epoch_of_the_script_is_not_needed(directory):
    """Scripts that resumed by themselves compute one; ours would begin there twice."""
    with pytest.raises(CheckpointMismatchError, match="A resume finds its epoch by it"):
        fitting.fit(fitting.model(of=layers()), directory, initial_epoch=1)


def test_another_kind_of_data_is_all_that_is_said_of_it(directory):
    def batches():
        while True:
            yield X[:4], Y[:4]

    given = {"x": batches(), "y": None, "batch_size": None, "shuffle": False}
    given["steps_per_epoch"] = 6
    lines = refused(directory, **given)
    assert lines == [
        "steps_per_epoch: the checkpoint has None, this run has 6",
        "data: the checkpoint has 'arrays', this run has 'generator'",
    ]


def test_other_objects_are_refused_by_name(directory):
    (line,) = refused(directory, stateful={"callback": Interrupt()})
    assert line.startswith("stateful: the checkpoint has ")


FUNCTION = {
    "activation": keras.layers.Dense(2, activation="tanh"),
    "use_bias": keras.layers.Dense(2, activation="relu", use_bias=False),
}


@pytest.mark.parametrize("setting", FUNCTION)
def test_what_changes_the_function_of_a_layer_is_refused(directory, setting):
    """The README says so: it is another model, though it may have the same weights."""
    others = layers()()
    others[1] = FUNCTION[setting]
    (line,) = refused(directory, fitting.model(of=lambda: others))
    assert line.startswith(f"layer 1 (Dense).{setting}: the checkpoint has ")


@pytest.mark.parametrize("built", [True, False])
def test_a_second_phase_of_training_is_recognised(tmp_path, built):
    """Whoever freezes or unfreezes layers means another run, not this one."""

    def phase(*, trainable):
        net = fitting.model(of=lambda: fitting.layers()[0 if built else 1 :])
        net.layers[0].trainable = trainable
        net.compile("adam", "mse")
        return net

    net = phase(trainable=False)
    fitting.fit(net, tmp_path, callbacks=[], epochs=1)
    before = files(tmp_path)
    frozen = r"trainable: the checkpoint has False, this run has True"
    with pytest.raises(CheckpointMismatchError, match=frozen) as found:
        fitting.fit(phase(trainable=True), tmp_path, callbacks=[], epochs=3)
    assert "each phase of training needs its own; `resilient.enabled`" in str(
        found.value
    )
    assert files(tmp_path) == before


@pytest.mark.everywhere
def test_another_number_of_steps_per_execution_is_refused(directory, backend):
    if backend == "torch":  # Keras allows 1 there
        net = fitting.model()
        edited(directory, set_fact("identity", "steps_per_execution", 2))
    else:
        net = fitting.model(steps_per_execution=2, run_eagerly=False)
    lines = refused(directory, net)
    names = [line.partition(":")[0] for line in lines]
    assert names == ["steps_per_execution"]


@pytest.mark.everywhere
def test_a_checkpoint_of_another_backend_is_refused(directory, backend):
    other = "jax" if backend != "jax" else "torch"
    edited(directory, set_fact("identity", "backend", other))
    assert refused(directory) == [
        f"backend: the checkpoint has '{other}', this run has '{backend}'"
    ]


def test_all_differences_are_listed_at_once(directory):
    lines = refused(
        directory,
        fitting.model(optimizer="sgd"),
        callbacks=[Interrupt()],
        batch_size=2,
        shuffle=False,
    )
    assert len(lines) >= 4
    for name in ("optimizer", "callbacks", "data batch_size", "data shuffle"):
        assert any(line.startswith(f"{name}: ") for line in lines)


def test_a_refused_checkpoint_leaves_the_files_of_callbacks_alone(directory, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("epoch,loss\n0,1.0\n")
    logger = keras.callbacks.CSVLogger(str(log))
    refused(directory, callbacks=[Interrupt(), stopping(), logger])
    assert log.read_text() == "epoch,loss\n0,1.0\n"


def test_an_added_metric_is_refused(directory):
    net = fitting.model(metrics=["mae"])
    before = files(directory)
    where, now = "metrics: ", "['loss', 'mean_absolute_error']"
    if keras.backend.backend() == "tensorflow":  # builds metrics in the first step
        where, now = "metrics[0]: ", "'mae'"
    with pytest.raises(CheckpointMismatchError, match=re.escape(where)) as found:
        resume(net, directory)
    assert f"this run has {now}" in str(found.value)
    assert files(directory) == before


def test_an_unbuilt_model_of_another_shape_is_refused(tmp_path):
    def unbuilt(width):
        return fitting.model(of=lambda: fitting.layers(width=width)[1:])

    fitting.interrupted(tmp_path, net=unbuilt(2), callbacks=[stopping()])
    before = files(tmp_path)
    with pytest.raises(CheckpointMismatchError, match="has 2, this run has 5"):
        resume(unbuilt(5), tmp_path)
    assert files(tmp_path) == before
    lines = not_exact(fitting.model(of=lambda: fitting.layers(rate=0.9)[1:]), tmp_path)
    assert lines == ["layer 2 (Dropout).rate: the checkpoint has 0.3, this run has 0.9"]


def test_a_refused_checkpoint_is_resumed_by_the_right_script(directory):
    expected = fitting.model()
    logs = expected.fit(**fitting.arguments(callbacks=[Interrupt(), stopping()]))
    refused(directory, fitting.model(of=layers(width=5)))
    refused(directory, batch_size=11)
    net = fitting.model(seed=99)
    assert resume(net, directory).history == logs.history
    fitting.assert_equal(expected, net)


# What may change ------------------------------------------------------------------


def test_patience_of_the_script_wins_and_blocks_nothing(directory):
    patient = stopping(patience=17)
    history = resume(fitting.model(), directory, callbacks=[Interrupt(), patient])
    assert patient.patience == 17
    assert len(history.epoch) == 3


def test_verbose_and_epochs_may_change(directory, capsys):
    history = resume(fitting.model(), directory, verbose=2, epochs=4)
    assert history.epoch == [0, 1, 2, 3]
    assert "Epoch 4/4" in capsys.readouterr().out


@pytest.mark.waits
def test_saving_keeping_and_validation_may_change(directory):
    x, y = fitting.data(6, seed=1)
    given = {"validation_data": (x, y), "save_freq": 3, "keep": 9}
    history = fitting.fit(
        fitting.model(), directory, callbacks=[Interrupt(), stopping()], **given
    )
    assert len(history.history["val_loss"]) == 2  # of the epochs trained with it
    assert fitting.steps(directory) == [4, 8, 9, 12, 15, 18]
    given["validation_data"] = (x + 1, y)
    history = fitting.fit(
        fitting.model(),
        directory,
        callbacks=[Interrupt(), stopping()],
        epochs=4,
        **given,
    )
    assert len(history.history["val_loss"]) == 3


@pytest.mark.waits
def test_a_learning_rate_schedule_of_the_script_wins(tmp_path):
    def net(rate):
        schedule = keras.optimizers.schedules.ExponentialDecay(rate, 4, 0.5)
        return fitting.model(optimizer=keras.optimizers.SGD(schedule))

    fitting.interrupted(tmp_path, net=net(0.1))
    with pytest.warns(NotExactWarning, match=r"initial_learning_rate: the .* has 0.1"):
        fitting.fit(net(0.0), tmp_path, callbacks=[Interrupt()])
    kernels = []
    for step in (8, 18):
        looked = net(0.0)
        ResilientFit(looked, checkpoint_dir=tmp_path).restore(step)
        kernels.append(fitting.values(looked)[:4])
    fitting.assert_equal(*kernels)  # a rate of zero changed nothing


@pytest.mark.waits
def test_the_learning_rate_of_the_checkpoint_wins(directory, caplog):
    expected = fitting.model()
    expected.fit(**fitting.arguments(callbacks=[Interrupt(), stopping()]))
    net = fitting.model(optimizer=keras.optimizers.Adam(0.5))
    with caplog.at_level(logging.WARNING, "resilient"):
        resume(net, directory)
    fitting.assert_equal(expected, net)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "learning rate changed from 0.001 to 0.5" in line
    assert "checkpoint's current rate is used" in line


@pytest.mark.waits
def test_an_equal_learning_rate_is_not_worth_a_line(directory, caplog):
    with caplog.at_level(logging.WARNING, "resilient"):
        resume(fitting.model(), directory)
    assert caplog.records == []


def not_exact(net, directory, **given):
    """Run again; the lines of the one warning, without what they begin with."""
    with pytest.warns(
        NotExactWarning, match="continues with those of this script"
    ) as found:
        resume(net, directory, **given)
    (warning,) = [w for w in found if w.category is NotExactWarning]
    assert warning.filename == fitting.__file__
    return [line.strip() for line in str(warning.message).split("\n")[1:]]


def test_the_dropout_rate_of_the_script_wins_with_a_warning(directory):
    net = fitting.model(of=lambda: fitting.layers(rate=0.9))
    assert not_exact(net, directory) == [
        "layer 2 (Dropout).rate: the checkpoint has 0.3, this run has 0.9"
    ]
    assert net.layers[1].rate == 0.9


def test_the_loss_of_the_script_wins_with_a_warning(directory):
    lines = not_exact(fitting.model(loss="mae"), directory)
    assert lines == ["loss: the checkpoint has 'mse', this run has 'mae'"]


def test_a_loss_object_of_the_script_wins_with_a_warning(directory):
    lines = not_exact(fitting.model(loss=keras.losses.Huber()), directory)
    assert [line.partition(":")[0] for line in lines] == ["loss"]


def test_running_compiled_instead_of_eagerly_warns(directory):
    names = [
        line.partition(":")[0]
        for line in not_exact(fitting.model(run_eagerly=False), directory)
    ]
    assert "run_eagerly" in names
    assert set(names) <= {"run_eagerly", "jit_compile"}


@pytest.mark.parametrize(
    ("name", "value"), [("keras", "3.11.9"), ("jit_compile", "other"), ("python", "2")]
)
def test_other_versions_with_the_same_layout_warn(directory, name, value):
    edited(directory, set_fact("settings", name, value))
    (line,) = not_exact(fitting.model(), directory)
    assert line.startswith(f"{name}: the checkpoint has {value!r}, this run has ")


def test_another_number_of_threads_is_said_once(directory):
    edited(directory, set_fact("determinism", "threads", 64))
    (line,) = not_exact(fitting.model(), directory)
    assert line.startswith("threads: the checkpoint has 64, this run has ")
    fitting.interrupted(directory, epoch=3, batch=1, epochs=4, callbacks=[stopping()])


def test_the_optimizers_settings_of_the_script_win_with_a_warning(directory):
    net = fitting.model(optimizer=keras.optimizers.Adam(clipnorm=1.0, beta_1=0.5))
    assert not_exact(net, directory) == [
        "optimizer.beta_1: the checkpoint has 0.9, this run has 0.5",
        "optimizer.clipnorm: the checkpoint has None, this run has 1.0",
    ]


def test_a_warning_made_an_error_refuses_before_anything_changes(directory):
    net = fitting.model(of=lambda: fitting.layers(rate=0.9))
    before = fitting.values(net)[:4], files(directory)
    with pytest.raises(NotExactWarning):  # pytest makes errors of warnings
        resume(net, directory)
    fitting.assert_equal(before[0], fitting.values(net)[:4])
    assert files(directory) == before[1]


def test_restore_into_another_model_lists_the_differences(directory):
    net = fitting.model(of=layers(lambda: keras.layers.Dense(2)))
    with pytest.raises(CheckpointMismatchError) as found:
        ResilientFit(net, checkpoint_dir=directory).restore()
    lines = str(found.value).splitlines()
    assert any(f"only one has {net.layers[-1].kernel.path}" in x for x in lines)
