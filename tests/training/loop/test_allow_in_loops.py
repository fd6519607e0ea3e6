"""A loop goes on with what ``allow`` lets change, says so once, and records it."""

import contextlib
import json
import shutil

import keras
import numpy as np
import pytest

import resilient
from resilient import CheckpointMismatchError, NotExactWarning
from resilient.cli.main import main
from resilient.training.options import OF_LOOPS

pytestmark = [
    pytest.mark.spread,
    pytest.mark.usefixtures("repeating"),
    pytest.mark.waits,
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

X = np.random.default_rng(1).normal(size=(12, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def net(activation="relu", optimizer="adam", metrics=("mae",)):
    found = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(2, activation=activation),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    found.compile(optimizer, "mse", metrics=list(metrics), run_eagerly=True)
    found.test_on_batch(X, Y)
    found.reset_metrics()
    return found


def train(directory, model=None, *, stop=None, data=(X, Y), batch=2, rest=(), **given):
    """Two epochs; those objects too. Left in the middle after ``stop`` steps."""
    model = model or net()
    objects = {"net": model, "total": keras.metrics.Sum(), **dict(rest)}
    run = resilient.Run(directory, save_freq=1, keep=9, verbose=0, **objects, **given)
    for _, step, (x, y) in run.loop(data, epochs=2, batch_size=batch):
        if step == stop:
            return run
        objects["total"].update_state(model.train_on_batch(x, y)[0])
        run.log(loss=objects["total"].result())
    return run, [np.array(v) for v in (*model.variables, *model.optimizer.variables)]


@pytest.fixture(scope="module")
def left(tmp_path_factory, repeating):
    """What a loop left in its second epoch of six batches, after 8 steps."""
    from support.waited import each_save_waited_for

    directory = tmp_path_factory.mktemp("allow") / "run"
    with each_save_waited_for():
        train(directory, stop=8)
    return directory


@pytest.fixture
def directory(left, tmp_path):
    return shutil.copytree(left, tmp_path / "run")


CHANGES = {
    "batch_size": lambda: {"batch": 4},
    "config": lambda: {"model": net("tanh")},
    "data": lambda: {"data": (X + 1, Y)},
    "metrics": lambda: {"model": net(metrics=["mae", "mape"])},
    "metrics more": lambda: {"rest": {"more": keras.metrics.Mean()}},
    "optimizer": lambda: {"model": net(optimizer="sgd")},
    "optimizer of the same layout": lambda: {"model": net(optimizer="adamw")},
    "optimizer more": lambda: {"rest": {"more": keras.optimizers.SGD()}},
}


# Each backend shows other batches; a fit shows variables of another layout.
OF_EACH = [
    pytest.param(name, marks=pytest.mark.everywhere) if name == "batch_size" else name
    for name in CHANGES
]


def allowed(directory):
    newest = max(directory.glob("step-*"))
    return json.loads((newest / "run.json").read_text())["allowed"]


@pytest.mark.parametrize("change", OF_EACH)
def test_a_change_is_refused_by_default_and_else_said_once(directory, tmp_path, change):
    name = change.split(" ")[0]
    with pytest.raises(CheckpointMismatchError) as refused:
        train(directory, **CHANGES[change]())
    assert f'allow={{"{name}"}}' in str(refused.value)
    with pytest.raises(CheckpointMismatchError):
        train(directory, **CHANGES[change](), allow=set(OF_LOOPS) - {name})
    other = shutil.copytree(directory, tmp_path / "other")
    with pytest.warns(NotExactWarning, match="continues from step 8") as found:
        run, expected = train(directory, **CHANGES[change](), allow={name})
    assert len([w for w in found if "`allow`" in str(w.message)]) == 1
    told = allowed(directory)
    assert {(each["step"], each["of"]) for each in told} == {(8, name)}
    left_to_do = 2 if name == "batch_size" else 4
    assert len(run.history["loss"]) == 8 + left_to_do

    with pytest.warns(NotExactWarning, match="continues from step 8"):
        train(other, **CHANGES[change](), allow={name}, stop=9)
    again, actual = train(other, **CHANGES[change]())  # nothing differs any more
    assert again.history["loss"] == run.history["loss"]
    for one, two in zip(expected, actual, strict=True):
        assert np.array_equal(one, two)
    assert allowed(other) == told


def test_several_changes_add_up_and_show_lists_them(directory, capsys):
    with pytest.warns(NotExactWarning, match="continues from step 8"):
        train(directory, net("tanh"), stop=9, allow=OF_LOOPS)
    given = {"model": net("tanh"), "batch": 5, "data": (X + 1, Y)}
    with pytest.raises(CheckpointMismatchError, match="in the middle of an epoch"):
        train(directory, **given, allow=OF_LOOPS)
    with pytest.warns(NotExactWarning, match="continues from step 6"):
        train(directory, **given, allow=OF_LOOPS, resume=6)
    assert {each["of"] for each in allowed(directory)} == {
        *("config", "batch_size", "data")
    }
    assert main(["show", str(directory)]) == 0
    assert "changed on purpose at step 6: net: layer" in capsys.readouterr().out


def test_in_nested_loops_and_where_it_is_looked_at(directory):
    given = {"net": net("tanh"), "total": keras.metrics.Sum()}
    run = resilient.Run(directory, verbose=0, **given, allow={"config", "data"})
    with pytest.warns(NotExactWarning, match="continues from step 8") as found:
        assert run.restore().step == 8
    found.clear()

    def nested():
        return [
            step
            for _ in run.epochs(2)
            for step, _ in run.batches((X + 1, Y), batch_size=2)
        ]

    with pytest.warns(NotExactWarning, match="continues from step 8") as found:
        steps = nested()
    assert steps == list(range(8, 12))
    assert [("layer 1" in str(w.message)) for w in found] == [True, False]
    assert {each["of"] for each in allowed(directory)} == {"config", "data"}


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="of torch")
@pytest.mark.parametrize("other", ["Adagrad", "SGD"])
def test_another_optimizer_of_torch_begins_as_new(tmp_path, other):
    import torch

    def objects(name):
        module = torch.nn.Linear(2, 1)
        kinds = {"mine": getattr(torch.optim, name)(module.parameters(), lr=0.1)}
        return {"net": module, **({} if name == "SGD" else kinds)}

    def step(found):
        found["net"](torch.ones(2)).sum().backward()
        for optimizer in (each for name, each in found.items() if name != "net"):
            optimizer.step()

    first, then = objects("Adam"), objects(other)
    with resilient.Run(tmp_path, verbose=0, **first) as run:
        step(first)
        run.advance()
    with pytest.raises(CheckpointMismatchError, match=r'allow=\{"optimizer"\}'):
        resilient.Run(tmp_path, verbose=0, **then).__enter__()
    run = resilient.Run(tmp_path, verbose=0, allow={"optimizer"}, **then)
    with pytest.warns(NotExactWarning, match="it starts fresh; the model keeps"):
        run.__enter__()
    with contextlib.ExitStack() as stack:
        stack.push(run.__exit__)
        assert torch.equal(first["net"].weight, then["net"].weight)
        assert torch.equal(first["net"].weight.grad, then["net"].weight.grad)
        step(then)
        run.advance()
    assert [each["of"] for each in allowed(tmp_path)] == ["optimizer"]


@pytest.mark.parametrize("name", ["callbacks", "learning_rate", "optimiser"])
def test_a_name_that_means_nothing_in_a_loop_lists_those_that_do(tmp_path, name):
    with pytest.raises(ValueError, match="`allow` has a name that is unknown") as found:
        resilient.Run(tmp_path, allow={name})
    assert f"Use one of: {', '.join(OF_LOOPS)}." in str(found.value)
