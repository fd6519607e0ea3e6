"""A loop whose models begin with the weights of other runs."""

import keras
import numpy as np
import pytest

import resilient
from resilient import CheckpointMismatchError, NotSupportedError
from resilient.telemetry.events import read_events

pytestmark = [
    pytest.mark.spread,
    pytest.mark.waits,
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


def net(name="net", width=2):
    found = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(width, name=f"{name}_encoder"),
            keras.layers.Dense(1, name=f"{name}_head"),
        ],
        name=name,
    )
    found.compile("adam", "mse", run_eagerly=True)
    return found


def weights(model):
    return [np.array(w) for w in model.get_weights()]


def same(one, two):
    return [np.array_equal(a, b) for a, b in zip(one, two, strict=True)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of a loop with two models, and their weights."""
    directory = tmp_path_factory.mktemp("source") / "run"
    models = {"left": net("left"), "right": net("right")}
    with resilient.Run(directory, verbose=0, **models) as run:
        run.advance()
    return directory, *(weights(model) for model in models.values())


@pytest.mark.everywhere
def test_the_only_model_begins_with_the_weights_of_a_fit(tmp_path, capsys):
    x = np.ones((4, 3), "float32")
    resilient.fit(net(), x, x[:, :1], checkpoint_dir=tmp_path / "fit", verbose=0)
    trained = net()
    resilient.ResilientFit(trained, checkpoint_dir=tmp_path / "fit").restore()
    first, total = net(), keras.metrics.Mean()
    start_from = {"start_from": tmp_path / "fit"}
    with resilient.Run(tmp_path / "a", net=first, total=total, **start_from) as run:
        assert same(weights(first), weights(trained)) == [True] * 4
        first.set_weights([w + 1 for w in first.get_weights()])
        run.advance()
    assert "net: Starting with 4 of 4 weights from" in capsys.readouterr().out
    (event,) = (e for e in read_events(tmp_path / "a") if e["event"] == "started from")
    assert (event["model"], event["taken"], event["left"]) == ("net", 4, [])
    again = net()
    gone = {"start_from": tmp_path / "gone"}  # is not looked at
    with resilient.Run(tmp_path / "a", net=again, total=keras.metrics.Mean(), **gone):
        assert same(weights(again), weights(first)) == [True] * 4


def test_of_a_loop_a_model_of_the_same_name_is_taken(source, tmp_path):
    directory, left, right = source
    only = {"right": net("right")}
    with resilient.Run(tmp_path / "a", start_from=directory, verbose=0, **only):
        assert same(weights(only["right"]), right) == [True] * 4
    both = {"left": net("other"), "right": net("right")}
    before = weights(both["right"])
    begin = {"start_from": {"left": directory}}
    with resilient.Run(tmp_path / "b", verbose=0, **begin, **both):
        assert same(weights(both["left"]), left) == [True] * 4
        assert same(weights(both["right"]), before) == [True] * 4


def test_some_layers_are_taken_and_where_one_model_fails_none_changes(source, tmp_path):
    directory, left, _ = source
    model = net("left", width=2)
    before = weights(model)
    layers = {"start_from": directory, "start_layers": ".*head.*"}
    with resilient.Run(tmp_path / "a", left=model, verbose=0, **layers):
        assert same(weights(model), left) == [False, True, True, True]
        assert same(weights(model), before) == [True, True, False, True]
    both = {"left": net("left"), "right": net("right", width=5)}
    before = weights(both["left"])
    begin = {"start_from": dict.fromkeys(both, directory)}
    with pytest.raises(CheckpointMismatchError, match="Nothing was changed"):
        resilient.Run(tmp_path / "b", verbose=0, **begin, **both).__enter__()
    assert same(weights(both["left"]), before) == [True] * 4


@pytest.mark.parametrize(
    ("given", "models", "kind", "words"),
    [
        ({"start_from": "a"}, 2, ValueError, "which model is meant.* left, right"),
        ({"start_from": "a"}, 0, ValueError, "which model is meant.* none"),
        ({"start_from": {"middle": "a"}}, 2, ValueError, "which model.* left, right"),
        ({"start_from": {"left": 3}}, 2, ValueError, "path of a directory or a file"),
        ({"start_from": 3}, 1, ValueError, "path of a directory or a file"),
        ({"start_layers": "a"}, 1, ValueError, "path of a directory"),
    ],
)
def test_wrong_arguments(given, models, kind, words, tmp_path):
    objects = {name: net(name) for name in ("left", "right")[:models]}
    with pytest.raises(kind, match=f"(?s){words}"):
        resilient.Run(tmp_path, **given, **objects)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="of JAX")
def test_what_trains_a_copy_cannot_start_from_others(tmp_path):
    model = net()
    state = [v.value for v in model.trainable_variables]
    with pytest.raises(ValueError, match="it trains copies of the weights"):
        resilient.Run(tmp_path, net=model, state=state, start_from="a")


@pytest.mark.parametrize("name", ["m.keras", "m.weights.h5"])
def test_a_layer_cannot_begin_with_the_file_of_a_model(tmp_path, name):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    (model.save if name == "m.keras" else model.save_weights)(tmp_path / name)
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    run = resilient.Run(tmp_path / "run", layer=layer, start_from=tmp_path / name)
    with pytest.raises(NotSupportedError, match="not a whole model"), run:
        pass
