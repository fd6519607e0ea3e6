"""A new run that begins with the weights of another, or of a file."""

import keras
import numpy as np
import pytest
from support import fitting
from support.waited import each_save_waited_for

import resilient
from resilient import (
    CheckpointMismatchError,
    CorruptCheckpointError,
    NotSupportedError,
)
from resilient.telemetry.events import read_events

pytestmark = [
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),
]


def two_layers(width=2, classes=1, seed=5, optimizer="adam"):
    """A model whose layers have names, so that paths are the same in all of them."""
    keras.utils.set_random_seed(seed)
    encoder = keras.layers.Dense(width, name="encoder")
    net = keras.Sequential(
        [keras.Input((3,)), encoder, keras.layers.Dense(classes, name="head")],
        name="net",
    )
    net.compile(optimizer, "mse", run_eagerly=True)
    return net


def weights(net):
    return [np.array(keras.ops.convert_to_numpy(v.value)) for v in net.weights]


def same(expected, actual):
    pairs = zip(expected, actual, strict=True)
    return [np.array_equal(a, b) for a, b in pairs]


class First(keras.callbacks.Callback):
    """Keeps the weights that training begins with."""

    def on_train_begin(self, logs=None):
        self._weights = weights(self.model)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def started(net, directory, **given):
    """The weights that a run of one epoch begins with."""
    first = First()
    fitting.fit(net, directory, **{"epochs": 1, "callbacks": [first]} | given)
    return first._weights


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Where a run of three epochs was, and its weights."""
    directory = tmp_path_factory.mktemp("source") / "run"
    net = two_layers()
    with each_save_waited_for():
        fitting.fit(net, directory, save_freq="epoch")
    resilient.export(directory, directory.with_name("x.safetensors"))
    resilient.export(directory, directory.with_name("x.weights.h5"), model=net)
    return directory, weights(net)


@pytest.mark.parametrize("kind", ["run", "run/step-00000018", "x.safetensors"])
def test_all_weights_are_taken_and_nothing_else(source, kind, tmp_path, capsys):
    """The optimizer is new, and may be another one."""
    directory, trained = source
    start_from = directory.parent / kind
    net = two_layers(seed=9, optimizer="sgd")
    first = started(net, tmp_path, start_from=start_from, verbose=2)
    assert same(trained, first) == [True] * 4
    assert int(net.optimizer.iterations) == fitting.STEPS
    (event,) = (e for e in read_events(tmp_path) if e["event"] == "started from")
    assert (event["taken"], event["count"], event["left"]) == (4, 4, [])
    assert "Starting with 4 of 4 weights from" in capsys.readouterr().out


@pytest.mark.parametrize("layers", [None, "net/encoder/.*"])
def test_a_file_that_only_keras_reads_is_of_the_same_model(source, layers, tmp_path):
    directory, trained = source
    given = {"start_from": directory.parent / "x.weights.h5", "start_layers": layers}
    first = started(two_layers(seed=9), tmp_path, **given)
    assert same(trained[:2], first[:2]) == [True] * 2
    assert same(trained[2:3], first[2:3]) == [not layers]


def test_a_step_is_taken_that_is_not_the_newest(source, tmp_path):
    directory, trained = source
    step = directory / "step-00000012"
    first = started(two_layers(seed=9), tmp_path, start_from=step)
    assert same(trained, first) == [False] * 4


def test_weights_with_other_names_are_taken_in_their_order(source, tmp_path):
    """As Keras names layers by itself; and frozen or not."""
    fitting.fit(fitting.model(), tmp_path / "a")
    newest = resilient.ResilientFit(None, checkpoint_dir=tmp_path / "a").latest
    again = fitting.model(seed=9)
    run = resilient.ResilientFit(again, checkpoint_dir=tmp_path / "look")
    first = started(again, tmp_path / "b", start_from=newest.path)
    other = fitting.model(seed=8)
    resilient.ResilientFit(other, checkpoint_dir=tmp_path / "a").restore()
    assert same(weights(other), first) == [True] * 4
    assert run.latest is None


@pytest.mark.parametrize("kind", ["run", "x.safetensors"])
def test_some_layers_are_taken_where_path_and_shape_are_the_same(
    source, kind, tmp_path, capsys
):
    """The rest is as the script made it, and what does not fit is named."""
    directory, trained = source
    net = two_layers(classes=2, seed=9)
    before = weights(net)
    options = {"start_from": directory.parent / kind, "start_layers": ".*(der|head).*"}
    first = started(
        net, tmp_path, verbose=2, y=np.zeros((fitting.SAMPLES, 2)), **options
    )
    assert same(trained[:2], first[:2]) == [True] * 2
    assert same(before[2:], first[2:]) == [True] * 2
    said = capsys.readouterr().out
    assert "Starting with 2 of 4 weights from" in said
    assert "net/head/kernel: (2, 1) float32 there, (2, 2) float32 here" in said


def test_frozen_layers_are_found_by_their_paths(source, tmp_path):
    directory, trained = source
    net = two_layers(seed=9)
    net.get_layer("encoder").trainable = False
    net.compile("adam", "mse", run_eagerly=True)
    started(net, tmp_path, start_from=directory)
    assert same(trained[:2], weights(net.get_layer("encoder"))) == [True] * 2


def test_a_run_that_resumes_does_not_look_at_it(tmp_path, source):
    """Not even whether it is there."""
    directory, _ = source
    alone, follow = two_layers(), [fitting.Interrupt()]
    fitting.fit(alone, tmp_path / "b", callbacks=follow, start_from=directory)
    fitting.interrupted(tmp_path / "a", net=two_layers(), start_from=directory)
    net, follow = two_layers(seed=9), [fitting.Interrupt()]
    gone = tmp_path / "gone"
    fitting.fit(net, tmp_path / "a", callbacks=follow, start_from=gone)
    assert same(weights(alone), weights(net)) == [True] * 4


MISMATCH = "does not match the model"
WRONG = [
    ({"start_layers": "head/.*"}, ValueError, "path of a directory"),
    ({"start_from": 7}, ValueError, "path of a directory or a file"),
    ({"start_from": "RUN", "start_layers": 7}, ValueError, "regular expression"),
    ({"start_from": "RUN", "start_layers": "*"}, ValueError, "regular expression"),
    ({"start_from": "RUN", "start_layers": "head"}, CheckpointMismatchError, MISMATCH),
    ({"start_from": "RUN"}, CheckpointMismatchError, r"\(2, 1\) .*there, \(2, 2\)"),
    ({"start_from": "RUN/gone"}, NotSupportedError, "nothing at this path"),
    ({"start_from": "RUN/events.jsonl"}, NotSupportedError, "nothing at this path"),
    ({"start_from": "RUN/.."}, NotSupportedError, "nothing at this path"),
    ({"start_from": "s3://bucket/run"}, NotSupportedError, "resilient export ADDRESS"),
    (
        {"start_from": "RUN/../x.weights.h5", "start_layers": "net/encoder/.*"},
        CheckpointMismatchError,
        MISMATCH,
    ),
    (
        {"start_from": "RUN", "start_layers": "net/head/.*"},
        CheckpointMismatchError,
        MISMATCH,
    ),
]


@pytest.mark.parametrize(("given", "error", "says"), WRONG, ids=str)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(
    source, given, error, says, tmp_path
):
    given = dict(given)
    if isinstance(given.get("start_from"), str):
        given["start_from"] = given["start_from"].replace("RUN", str(source[0]))
    net = two_layers(classes=2, seed=9)
    before = weights(net)
    with pytest.raises(error, match=says):
        started(net, tmp_path, **given)
    assert same(before, weights(net)) == [True] * 4
    assert fitting.steps(tmp_path) == []


def test_a_model_has_to_be_built(source, tmp_path):
    net = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    net.compile("adam", "mse", run_eagerly=True)
    with pytest.raises(CheckpointMismatchError, match="Build and compile the model"):
        started(net, tmp_path, start_from=source[0])


def test_what_the_model_has_no_place_for_is_named(source, tmp_path):
    net = keras.Sequential([keras.Input((3,))], name="net")
    net.add(keras.layers.Dense(2, name="encoder"))
    net.compile("adam", "mse", run_eagerly=True)
    with pytest.raises(CheckpointMismatchError, match="unexpected: net/head/kernel"):
        started(net, tmp_path, start_from=source[0])


@pytest.mark.waits
def test_a_damaged_checkpoint_is_named_and_stays(tmp_path):
    """The run is another's: nothing of it is moved, and an older one is a choice."""
    trained = two_layers()
    fitting.fit(trained, tmp_path / "a", save_freq="epoch")
    (tmp_path / "a" / "step-00000018" / "run.json").write_bytes(b"{}")
    net = two_layers(seed=9)
    with pytest.raises(CorruptCheckpointError, match="step 18 is damaged"):
        started(net, tmp_path / "b", start_from=tmp_path / "a")
    started(net, tmp_path / "b", start_from=tmp_path / "a" / "step-00000012")
    assert fitting.steps(tmp_path / "a") == [6, 12, 18]
