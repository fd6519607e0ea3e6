"""``resilient.Run``: what it takes, what it refuses, what it says."""

import gc
import json
import os
import random
import re
import signal
from collections import OrderedDict

import keras
import numpy as np
import pytest
from support.gang import run_alone

import resilient
from resilient import (
    CheckpointMismatchError,
    CheckpointNotFoundError,
    DataNotResumableError,
    DirectoryInUseError,
    NotExactWarning,
    NotSupportedError,
    Preempted,
    Preemption,
    ResilientError,
    every,
)
from resilient.backends import get_backend
from resilient.cli.main import main
from resilient.saving.record import SavedState
from resilient.telemetry.events import read_events

BATCH, STEPS = 4, 5

pytestmark = pytest.mark.spread


def arrays():
    x = np.arange(BATCH * STEPS, dtype="float32")
    return x, -x


def value(start=0.0):
    return keras.Variable(start, trainable=False)


def run_on(directory, **arguments):
    return resilient.Run(directory, verbose=0, **arguments)


def test_epochs_and_steps_count_from_0_over_the_whole_run(tmp_path):
    total = value()
    run = run_on(tmp_path, total=total)
    seen = []
    for epoch, step, (x, y) in run.loop(arrays(), epochs=2, batch_size=BATCH):
        seen.append((epoch, step, len(x), run.step))
        assert float(x[0]) == -float(y[0])
        total.assign_add(1.0)
    assert seen == [(i // STEPS, i, BATCH, i) for i in range(2 * STEPS)]
    assert run.step == 2 * STEPS
    assert run.latest.step == 2 * STEPS
    assert run.latest.finished


@pytest.mark.everywhere
def test_another_process_goes_on_where_the_checkpoint_is(tmp_path):
    """In place, with history and random numbers; and more epochs continue a run."""
    first, generator = value(), np.random.default_rng(1)
    run = run_on(tmp_path, v=first, generator=generator)
    for _, step, _ in run.loop(arrays(), epochs=1, batch_size=BATCH):
        run.log(drawn=generator.random(), step=step)
        first.assign_add(1.0)
    np.random.seed(99)
    second, other = value(-3.0), np.random.default_rng(5)
    again = run_on(tmp_path, v=second, generator=other)
    steps = []
    for _, step, _ in again.loop(arrays(), epochs=2, batch_size=BATCH):
        if not steps:
            assert float(second) == STEPS
            assert other.bit_generator.state == generator.bit_generator.state
        steps.append(step)
        again.log(drawn=other.random(), step=step)
    assert steps == list(range(STEPS, 2 * STEPS))
    assert again.history["step"] == [float(i) for i in range(2 * STEPS)]
    expected = np.random.default_rng(1)
    assert again.history["drawn"] == [expected.random() for _ in range(2 * STEPS)]
    assert again.history.steps("drawn") == list(range(2 * STEPS))


def test_what_is_logged_after_the_batches_belongs_to_the_epoch(tmp_path):
    """``keep=best`` compares what was last logged in an epoch."""
    run = run_on(
        tmp_path, v=value(), save_freq="epoch", keep=resilient.best(1, "val_loss")
    )
    losses, data = [3.0, 1.0, 2.0], arrays()
    for epoch in run.epochs(3):
        for _ in run.batches(data, batch_size=BATCH):
            pass
        if epoch != 2:  # the last one has none
            run.log(val_loss=losses[epoch])
    assert run.history.steps("val_loss") == [STEPS - 1, 2 * STEPS - 1]
    assert {c.step: dict(c.metrics) for c in run.checkpoints} == {
        2 * STEPS: {"val_loss": 1.0},
        3 * STEPS: {},
    }


def test_events_have_what_was_logged_last_at_saves_and_at_epochs_ends(tmp_path):
    run = run_on(tmp_path, v=value(), save_freq=2)
    for _, step, _ in run.loop(arrays(), epochs=2, batch_size=BATCH):
        run.log(loss=step / 2)
    found = [e for e in read_events(tmp_path) if e["event"] == "metrics"]
    told = [(e["step"], e["epoch"], e["batch"], e["logs"]["loss"]) for e in found]
    ends = [(STEPS, 1, 0, (STEPS - 1) / 2), (2 * STEPS, 2, 0, (2 * STEPS - 1) / 2)]
    assert [each for each in told if each[2] == 0] == ends
    inside = [each for each in told if each[2]]
    assert inside
    assert all(loss == (step - 1) / 2 for step, _, _, loss in inside)


@pytest.mark.everywhere
def test_history_takes_scalars_of_every_kind(tmp_path):
    run = run_on(tmp_path, v=value())
    tensor = keras.ops.convert_to_tensor(0.1)
    with run:
        run.log(a=tensor, b=np.float32(0.1), c=1, d=True, e=value(0.1))
        run.advance()
    again = run_on(tmp_path, v=value())
    again.restore()
    tenth = float(np.float32(0.1))
    expected = {"a": [tenth], "b": [tenth], "c": [1.0], "d": [1.0], "e": [tenth]}
    assert dict(again.history) == expected


@pytest.mark.parametrize("what", ["text", None, np.zeros(2), [1.0]])
def test_what_is_no_number_is_not_logged(what, tmp_path):
    with pytest.raises(TypeError, match=r"run\.log records numbers only(.|\n)*loss="):
        run_on(tmp_path, v=value()).log(loss=what)


@pytest.mark.everywhere
def test_many_numbers_are_fetched_meanwhile(tmp_path):
    run = run_on(tmp_path, v=value())
    for number in range(300):
        run.log(x=keras.ops.convert_to_tensor(float(number)))
    assert run.history["x"] == [float(i) for i in range(300)]


def test_leaving_a_loop_is_no_end_of_the_run(tmp_path):
    """Those who mean the end call ``stop``; the steps after the last save are lost."""
    run = run_on(tmp_path, v=value(), save_freq=2)
    for _, step, _ in run.loop(arrays(), epochs=1, batch_size=BATCH):
        if step == 3:
            break
    assert run.latest.step == 2
    again = run_on(tmp_path, v=value())
    steps = [s for _, s, _ in again.loop(arrays(), epochs=1, batch_size=BATCH)]
    assert steps == [2, 3, 4]


def test_stop_ends_the_run(tmp_path):
    run = run_on(tmp_path, v=value())
    for _, step, _ in run.loop(arrays(), epochs=3, batch_size=BATCH):
        if step == 1:
            run.stop()
    assert run.latest.step == 2
    assert run.latest.finished
    again = run_on(tmp_path, v=value())
    assert list(again.loop(arrays(), epochs=9, batch_size=BATCH)) == []


def test_a_stopped_run_says_so_and_goes_on_if_allowed(tmp_path, capsys):
    run = resilient.Run(tmp_path, v=value())
    for _ in run.loop(arrays(), epochs=3, batch_size=BATCH):
        run.stop()
    again = resilient.Run(tmp_path, v=value())
    assert list(again.loop(arrays(), epochs=3, batch_size=BATCH)) == []
    assert "run.stop() ended it in epoch 1 of 3. Pass" in capsys.readouterr().out
    allowed = run_on(tmp_path, v=value(), allow={"stopped"})
    batches = allowed.loop(arrays(), epochs=2, batch_size=BATCH)
    with pytest.warns(NotExactWarning, match="training goes on"):
        steps = [step for _, step, _ in batches]
    assert steps == [1, 2, 3, 4, 5]


def test_an_epoch_may_be_left(tmp_path):
    """The next one begins at the start of the data; so it does after a resume."""
    run = run_on(tmp_path, v=value(), save_freq=1)
    seen, data = [], arrays()
    for _ in run.epochs(2):
        for step, (x, _) in run.batches(data, batch_size=BATCH, shuffle=False):
            seen.append((step, float(x[0])))
            if float(x[0]) == BATCH:
                break
    assert seen == [(0, 0.0), (1, 4.0), (2, 0.0), (3, 4.0)]


@pytest.mark.waits
def test_code_before_the_batches_draws_again_what_it_drew(tmp_path):
    """Also if it draws more than it did, or less: then the batches draw as before."""
    drawn = []

    def train(*, until=None, more=0):
        run, data = run_on(tmp_path, v=value(), save_freq=2), arrays()
        for epoch in run.epochs(2):
            np.random.rand(more)
            before = random.random(), float(keras.random.uniform(()))
            for step, _ in run.batches(data, batch_size=BATCH):
                drawn.append((epoch, step, before, np.random.rand()))
                if step == until:
                    return

    train(until=7)
    killed = {step: rest for _, step, *rest in drawn}
    drawn.clear()
    random.seed(5)
    np.random.seed(5)
    train(until=7, more=3)
    assert [step for _, step, *_ in drawn] == [6, 7]
    assert {step: rest for _, step, *rest in drawn} == {k: killed[k] for k in (6, 7)}


@pytest.mark.waits
def test_error_of_the_loop_is_recorded(tmp_path):
    """With ``with`` it is seen; the next run goes on at the last checkpoint."""
    run = run_on(tmp_path, v=value(), save_freq=1)

    def fail():
        for _, step, _ in run.loop(arrays(), epochs=1, batch_size=BATCH):
            if step == 2:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error, run:
        fail()
    assert "it resumes at step 2" in error.value.__notes__[0]
    failed = list(read_events(tmp_path))[-1]
    assert (failed["event"], failed["error"]) == ("failed", "ZeroDivisionError")


@pytest.mark.waits
def test_saves_when_asked(tmp_path):
    run = run_on(tmp_path, v=value(), save_freq=every(steps=1000), keep=9)
    for _, step, _ in run.loop(arrays(), epochs=1, batch_size=BATCH):
        if step == 1:
            run.save()
    assert [c.step for c in run.checkpoints] == [2, STEPS]
    with run_on(tmp_path / "block", v=value(), save_freq=1000) as block:
        block.advance(3)
        block.save()
        assert block.latest.step == 3
        block.advance()
    assert block.latest.step == 4


@pytest.mark.everywhere
@pytest.mark.waits
def test_restore_goes_back(tmp_path):
    """Within ``with`` the run goes on from there; outside it is to look at it."""
    v = value()
    with run_on(tmp_path, v=v, save_freq=1, keep=9) as run:
        for _ in range(4):
            v.assign_add(1.0)
            run.log(v=v)
            run.advance()
        assert run.restore(2).step == 2
        assert float(v) == 2.0
        assert run.step == 2
        assert run.history["v"] == [1.0, 2.0]
        assert [c.step for c in run.checkpoints] == [1, 2]
        v.assign(9.0)
        run.advance()
    other = value()
    look = run_on(tmp_path, v=other)
    assert look.restore().step == 3
    assert float(other) == 9.0
    assert look.restore(1).step == 1
    assert float(other) == 1.0
    assert look.step == 0
    with pytest.raises(CheckpointNotFoundError):
        look.restore(7)


def test_restore_without_a_checkpoint(tmp_path):
    with pytest.raises(CheckpointNotFoundError):
        run_on(tmp_path / "none", v=value()).restore()
    with pytest.raises(CheckpointNotFoundError), run_on(tmp_path, v=value()) as run:
        run.restore()


def test_asked_to_stop_it_saves_that_step(tmp_path):
    run = run_on(tmp_path, v=value(), save_freq=1000)
    loop = run.loop(arrays(), epochs=1, batch_size=BATCH)
    for _ in range(3):
        next(loop)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Preempted):
        next(loop)
    assert run.latest.step == 3
    assert list(read_events(tmp_path))[-1]["event"] == "preempted"
    steps = [
        s
        for _, s, _ in run_on(tmp_path, v=value()).loop(
            arrays(), epochs=1, batch_size=BATCH
        )
    ]
    assert steps == [3, 4]


def test_other_objects_are_refused(tmp_path):
    """By name, with what is different; nothing is changed."""
    with run_on(tmp_path, v=value(1.0), w=keras.Variable(np.zeros(3))) as run:
        run.advance()
    wide = value(5.0), keras.Variable(np.zeros(4))
    with (
        pytest.raises(CheckpointMismatchError, match=r"\(3,\).*this model has \(4,\)"),
        run_on(tmp_path, v=wide[0], w=wide[1]),
    ):
        pass
    assert float(wide[0]) == 5.0
    with (
        pytest.raises(
            CheckpointMismatchError,
            match=r"`w`: .* 'Keras variable', this run has None",
        ),
        run_on(tmp_path, v=value()),
    ):
        pass


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="of torch")
def test_another_optimizer_of_torch_is_refused(tmp_path):
    """Of another class, or of other parameters."""
    import torch

    def optimizer(cls, width):
        return cls(torch.nn.Linear(width, 1).parameters(), lr=0.1)

    with run_on(tmp_path, optimizer=optimizer(torch.optim.SGD, 2)) as run:
        run.advance()
    for other in (optimizer(torch.optim.Adam, 2), optimizer(torch.optim.SGD, 3)):
        with (
            pytest.raises(CheckpointMismatchError, match=r"optimizer: .*'SGD', .*2\]"),
            run_on(tmp_path, optimizer=other),
        ):
            pass
    with run_on(tmp_path, optimizer=optimizer(torch.optim.SGD, 2)) as again:
        assert again.step == 1


def test_unknown_objects_are_refused_at_once(tmp_path):
    with pytest.raises(TypeError, match="`table` cannot be saved and restored"):
        run_on(tmp_path, table={})


def test_other_data_is_refused(tmp_path):
    run = run_on(tmp_path, v=value(), save_freq=2)
    for _, step, _ in run.loop(arrays(), epochs=1, batch_size=BATCH):
        if step == 3:
            break
    x, y = arrays()
    again = run_on(tmp_path, v=value())
    with pytest.raises(CheckpointMismatchError, match="data x"):
        next(again.loop((x + 1, y), epochs=1, batch_size=BATCH))


def test_data_is_given_once(tmp_path):
    data = arrays()
    run = run_on(tmp_path, data=data)
    assert len(list(run.loop(epochs=1, batch_size=BATCH))) == STEPS
    with pytest.raises(ValueError, match="one dataset"):
        run.loop(arrays(), epochs=1)
    with pytest.raises(ValueError, match="one dataset"):
        run_on(tmp_path / "none").loop(epochs=1)


def test_data_made_anew_for_each_epoch_is_refused(tmp_path):
    run = run_on(tmp_path)

    def train():
        for _ in run.epochs(2):
            list(run.batches(arrays(), batch_size=BATCH))

    with pytest.raises(DataNotResumableError, match="changed between epochs"):
        train()


def test_a_generator_is_over_after_an_epoch(tmp_path):
    def two():
        yield from [(np.zeros((1, 1)),)] * 2

    with pytest.raises(DataNotResumableError, match="ended too early"):
        list(run_on(tmp_path).loop(two(), epochs=2))
    run = run_on(tmp_path / "steps")
    with pytest.raises(
        DataNotResumableError, match="2 batches in this epoch, expected 3"
    ):
        list(run.loop(two(), epochs=1, steps_per_epoch=3))


def test_finite_data_begins_again_with_steps_per_epoch(tmp_path):
    loop = run_on(tmp_path).loop(
        arrays(), epochs=3, batch_size=BATCH, steps_per_epoch=STEPS, shuffle=False
    )
    assert [float(x[0]) for _, _, (x, _) in loop] == [0, 4, 8, 12, 16] * 3


@pytest.mark.parametrize("epochs", [0, -1, 1.5, "two", True])
def test_epochs_are_a_number(epochs, tmp_path):
    wrong = (TypeError, ValueError)
    with pytest.raises(wrong, match=r"`epochs` must be an integer of 1 or more"):
        run_on(tmp_path).loop(arrays(), epochs=epochs)


def test_calls_that_do_not_go_there(tmp_path):
    run = run_on(tmp_path, v=value())
    with pytest.raises(ResilientError, match=r"run\.save cannot be used here"):
        run.save()
    with pytest.raises(ResilientError, match=r"run\.advance cannot be used here"):
        run.advance()
    with pytest.raises(ResilientError, match=r"run\.batches cannot be used here"):
        run.batches(arrays())
    data = arrays()
    for _ in run.epochs(1):
        list(run.batches(data))
        with pytest.raises(ResilientError, match=r"once per epoch"):
            list(run.batches(data))
    for _ in run.loop(data, epochs=2):
        with pytest.raises(ResilientError, match=r"run\.restore"):
            run.restore()
        with pytest.raises(ResilientError, match=r"run\.loop"):
            next(run.loop(arrays(), epochs=1))
        with pytest.raises(ResilientError, match="`with run`"):
            run.__enter__()
    with run, pytest.raises(ResilientError, match="`with run`"):
        run.__enter__()


def test_one_run_in_a_directory(tmp_path):
    with (
        run_on(tmp_path, v=value()),
        pytest.raises(DirectoryInUseError),
        run_on(tmp_path, v=value()),
    ):
        pass


def test_checkpoints_of_fit_and_of_loops_are_told_apart(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((4, 1))
    resilient.fit(model, x, x, verbose=0, checkpoint_dir=tmp_path / "fit")
    with (
        pytest.raises(CheckpointMismatchError, match=r"what resilient\.fit saved"),
        run_on(tmp_path / "fit", model=model),
    ):
        pass
    with pytest.raises(CheckpointMismatchError, match=r"what resilient\.fit saved"):
        next(run_on(tmp_path / "fit", model=model).loop(x, epochs=2))
    with run_on(tmp_path / "loop", model=model) as run:
        run.advance()
    with pytest.raises(CheckpointMismatchError, match=r"what resilient\.Run saved"):
        resilient.fit(model, x, x, verbose=0, checkpoint_dir=tmp_path / "loop")


def test_resume_never_starts_anew(tmp_path):
    for count in (3, 2):
        with run_on(tmp_path, v=value(), resume="never", save_freq=1) as run:
            run.advance(count)
    assert [c.step for c in run.checkpoints] == [2]


def test_a_loop_goes_back_to_its_best_epoch_once(tmp_path):
    """By what was logged; the loops that this process runs afterwards go on."""
    keep = resilient.latest(9) | resilient.best(1, "score", mode="max")
    for resume, scores, first in (
        ("auto", [1.0, 3.0, 2.0], 0),
        ("best", [4.0, 5.0], 2 * STEPS),
    ):
        v = value()
        run = run_on(tmp_path, v=v, keep=keep, save_freq="epoch", resume=resume)
        steps = []
        for epochs in (3, 4):
            for _, step, _ in run.loop(arrays(), epochs=epochs, batch_size=BATCH):
                steps.append(step)
                v.assign_add(1.0)
                run.log(score=scores[(step - first) // STEPS % len(scores)])
        assert steps == list(range(first, 4 * STEPS))
        assert float(v) == 4 * STEPS


def test_a_model_that_is_not_built_is_built_as_it_was(tmp_path):
    """Its optimizer as well, built for some of its weights, of whichever name."""

    def made():
        net = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
        return net, keras.optimizers.Adam()

    net, optimizer = made()
    with run_on(tmp_path, net=net, adam=optimizer) as run:
        net(np.zeros((2, 3), "float32"))
        some = net.layers[1].trainable_variables
        optimizer.build(some)
        optimizer.apply([keras.ops.ones(v.shape) for v in some], some)
        run.advance()
    other, new = made()
    with run_on(tmp_path, net=other, adam=new):
        assert (len(other.variables), len(new.variables)) == (4, 6)
        for one, two in ((net, other), (optimizer, new)):
            for a, b in zip(one.variables, two.variables, strict=True):
                both = get_backend().snapshot({"a": a, "b": b}).arrays
                assert np.array_equal(both["a"], both["b"])


def test_an_optimizer_that_a_loop_does_not_use_is_not_built(tmp_path):
    def made():
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        net.compile("adam", "mse")
        return net

    with run_on(tmp_path, net=made()) as run:
        run.advance()
    other = made()
    with run_on(tmp_path, net=other) as again:
        assert again.step == 1
    assert not other.optimizer.built


def test_a_variable_of_two_objects_is_saved_once(tmp_path):
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.compile("adam", "mse")
    net.optimizer.build(net.trainable_variables)
    with run_on(tmp_path, net=net, optimizer=net.optimizer) as run:
        run.advance()
    found = json.loads((run.latest.path / "run.json").read_text())["variables"]
    groups = (net, net.optimizer, keras.metrics.Mean())
    expected = sum(len(group.variables) for group in groups)
    assert len(found) == expected


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="others have none")
def test_gradients_that_a_loop_accumulates_go_on(tmp_path):
    """And what is trained, since a loop may freeze some of it."""
    import torch

    net = torch.nn.Linear(2, 1)
    net.bias.requires_grad_(False)
    with run_on(tmp_path, net=net) as run:
        net(torch.tensor([[3.0, 4.0]])).sum().backward()
        run.advance()
    other = torch.nn.Linear(2, 1)
    with run_on(tmp_path, net=other):
        assert other.weight.grad.tolist() == [[3.0, 4.0]]
        assert other.bias.grad is None
        assert not other.bias.requires_grad


def test_python_generators_are_objects(tmp_path):
    own = random.Random(1)
    with run_on(tmp_path, own=own) as run:
        own.random()
        run.advance()
    other = random.Random(2)
    with run_on(tmp_path, own=other):
        assert other.getstate() == own.getstate()


@pytest.mark.everywhere
def test_a_pytree_gets_back_the_types_that_its_first_step_made(tmp_path, backend):
    """Numbers and arrays of NumPy become JAX's; a number's type gives way to others."""
    if backend != "jax":
        pytest.skip("a pytree of JAX")
    import jax
    import jax.numpy as jnp

    @jax.jit
    def train(state):
        w = state["w"] * state["rate"] + state["mean"].sum().astype("bfloat16")
        rates = state["rates"] * 0.9 + state["rate"]
        state = state | {"w": w, "rate": state["rate"] * 0.9, "rates": rates}
        return state | {"step": state["step"] + 1, "mean": state["mean"] + 1}

    def run_once(directory, last):
        weak = jax.lax.broadcast(jnp.asarray(0.1), (2,))
        state = {"step": 0, "rate": 0.5, "mean": np.zeros(2, "float32"), "rates": weak}
        state["w"] = jnp.ones(3, jnp.bfloat16)
        run = run_on(directory, save_freq=2, state=state)
        for _, step, _ in run.loop(arrays(), epochs=1, batch_size=BATCH):
            run.state = train(run.state)
            if step == last:
                break
        return {
            name: (each.dtype, each.weak_type, np.asarray(each).tobytes())
            for name, each in run.state.items()
        }

    expected = run_once(tmp_path / "alone", last=None)
    assert expected["w"][0] == "bfloat16"
    assert expected["rates"][1]
    run_once(tmp_path / "resumed", last=2)
    assert run_once(tmp_path / "resumed", last=None) == expected


@pytest.mark.everywhere
def test_another_pytree_is_refused_with_the_leaves_that_differ(tmp_path, backend):
    if backend != "jax":
        pytest.skip("a pytree of JAX")
    import jax

    def tree(**other):
        leaves = {"w": jax.numpy.ones(3), "rate": 0.1, "key": jax.random.key(1)}
        return run_on(tmp_path, state=OrderedDict(leaves | other))

    with tree() as run:
        run.advance()
    more, another = (
        tree(bias=jax.numpy.ones(3)),
        tree(key=jax.random.key(1, impl="rbg")),
    )
    turned = tree()
    turned.state = OrderedDict(reversed(turned.state.items()))
    for run, words in (
        (more, r"state\['bias'\]: the checkpoint has None, this run has 'an array'"),
        (another, r"state\['key'\]: .*fry2x32', this run has 'a key of rbg'"),
        (turned, r"state leaves: the checkpoint has .*'w'.*'key'.*has .*'key'.*'w'"),
    ):
        with pytest.raises(CheckpointMismatchError, match=words), run:
            pass
    with tree(rate=0.5, w=jax.numpy.zeros(3)) as run:
        assert run.state["rate"] == 0.1
        assert run.state["w"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.everywhere
def test_leaves_that_no_checkpoint_can_hold_are_refused_at_once(tmp_path, backend):
    """A function has no bytes to save; its path and a way on are named."""
    if backend != "jax":
        pytest.skip("a pytree of JAX")
    state = {"w": keras.ops.ones(3), "layers": [{"activation": lambda x: x}]}
    with pytest.raises(resilient.NotSupportedError) as refused:
        run_on(tmp_path, state=state)
    assert "state[\"['layers'][0]['activation']\"] cannot" in str(refused.value)
    assert "eqx.partition(state, eqx.is_array)" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.everywhere
def test_a_pytree_that_grows_is_refused_after_the_first_step(tmp_path, backend):
    """Not when a resume lacks the leaves, hours later."""
    if backend != "jax":
        pytest.skip("a pytree of JAX")
    steps = []
    run = run_on(tmp_path, state={"w": keras.ops.ones(3), "velocity": None})

    def train():
        for _, step, _ in run.loop(arrays(), epochs=1, batch_size=BATCH):
            steps.append(step)
            run.state = run.state | {"velocity": keras.ops.zeros(3)}

    with pytest.raises(NotSupportedError, match="created after the loop began") as said:
        train()
    assert steps == [0]
    assert said.value.received == "state['velocity']"


@pytest.mark.everywhere
def test_state_is_for_jax(tmp_path, backend):
    if backend != "jax":
        with pytest.raises(resilient.NotSupportedError, match="KERAS_BACKEND=jax"):
            run_on(tmp_path, state={"a": 1})
        return
    run = run_on(tmp_path, v=value())
    assert run.state is None
    with pytest.raises(ResilientError, match="Pass state="):
        run.state = 1


FAILING = """
import sys
import keras
import resilient

run = resilient.Run(sys.argv[1], v=keras.Variable(0.0), save_freq=1)
for _, step, _ in run.loop(keras.ops.ones((8, 1)), epochs=2, batch_size=2):
    if step == 5:
        raise LookupError("a bug")
"""


def test_error_in_the_body_of_a_loop_is_recorded(tmp_path):
    """Python does not tell a generator why it is left; the end of the process does."""
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    status, told = run_alone(script, tmp_path / "run")
    assert status == 1
    assert "keras-resilient: training failed after step 5" in told
    last = list(read_events(tmp_path / "run"))[-1]
    assert (last["event"], last["error"]) == ("failed", "LookupError")
    assert 0 < last["resume_step"] <= 5  # saved in the background


@pytest.mark.waits
def test_interrupted_in_the_body_of_a_loop(tmp_path):
    """Where the grace period is over before the step is: the last checkpoint stands."""
    run = run_on(
        tmp_path, v=value(), save_freq=1, preemption=Preemption(grace_period=0.1)
    )

    def train():
        for _, step, _ in run.loop(arrays(), epochs=1, batch_size=BATCH):
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                while True:
                    signal.pause()

    with pytest.raises(Preempted) as end:
        train()
    assert not end.value.saved
    last = list(read_events(tmp_path))[-1]
    assert (last["event"], last["saved"]) == ("preempted", False)
    assert run.latest.step == 2


def test_a_loop_that_was_left_goes_on_at_the_last_checkpoint(tmp_path):
    """In the same process, with the same Run: what is in memory is not trusted."""
    v = value()
    run = run_on(tmp_path, v=v, save_freq=2)
    seen = []
    for _ in range(2):
        for _, step, (x, _) in run.loop(
            arrays(), epochs=1, batch_size=BATCH, shuffle=False
        ):
            seen.append((step, float(x[0]), float(v)))
            v.assign_add(1.0)
            if seen[-1][0] == 3 and len(seen) == 4:
                break
    again = [(2, 8.0, 2.0), (3, 12.0, 3.0), (4, 16.0, 4.0)]
    assert seen == [(0, 0.0, 0.0), (1, 4.0, 1.0), (2, 8.0, 2.0), (3, 12.0, 3.0), *again]
    with run_on(tmp_path / "block", v=v, save_freq=1) as block:
        next(block.loop(arrays(), epochs=1))
        with pytest.raises(ResilientError, match="left in the middle"):
            next(block.loop(arrays(), epochs=1))


def test_a_loop_that_was_left_before_a_checkpoint(tmp_path):
    run = run_on(tmp_path, v=value(), save_freq=100)
    next(run.loop(arrays(), epochs=1))
    with pytest.raises(ResilientError, match="before the first checkpoint"):
        next(run.loop(arrays(), epochs=1))


def test_names_of_objects(tmp_path):
    with pytest.raises(ValueError, match=r"cannot be used(.|\n)*'a\.b'"):
        run_on(tmp_path, **{"a.b": value()})


def test_an_epoch_of_other_length_is_refused(tmp_path):
    run = run_on(tmp_path, v=value(), save_freq=2)
    loop = run.loop(arrays(), epochs=1, batch_size=BATCH, steps_per_epoch=4)
    for _ in range(4):
        next(loop)
    loop.close()
    again = run_on(tmp_path, v=value())
    with pytest.raises(CheckpointMismatchError, match="steps_per_epoch"):
        next(again.loop(arrays(), epochs=1, batch_size=BATCH))


def test_commands_look_at_loops_too(tmp_path, capsys):
    run = run_on(tmp_path, v=value(), save_freq=2)
    for _ in run.loop(arrays(), epochs=1, batch_size=BATCH):
        run.log(loss=1.0)
    for command in ("ls", "show", "verify", "report"):
        assert main([command, str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "loss 1" in out
    assert "cannot be shown" not in out


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"batch_size": "8"},
        {"steps_per_epoch": -1},
        {"steps_per_epoch": True},
        {"shuffle": "no"},
    ],
)
def test_wrong_arguments_of_a_loop(wrong, tmp_path):
    (name,) = wrong
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
        run_on(tmp_path).loop(arrays(), epochs=1, **wrong)


@pytest.mark.parametrize("data", [iter([1]), zip([1], [2], strict=True), object()])
def test_data_that_has_no_position_is_refused(data, tmp_path):
    with pytest.raises(DataNotResumableError, match=r"`data` cannot be resumed"):
        next(run_on(tmp_path).loop(data, epochs=1))


@pytest.mark.waits
def test_a_list_of_batches_is_iterated_as_it_is(tmp_path):
    """Tuples, dicts, and lists of arrays, as ``list(loader)`` has them."""
    x, y = arrays()
    data = [(x[:2], y[:2]), {"x": x}, [x, y], (x,)]
    run = run_on(tmp_path, save_freq=1)
    for _, step, batch in run.loop(data, epochs=2):
        assert batch is data[step % 4]
        if step == 5:
            break
    again = run_on(tmp_path, data=data)
    assert [step for _, step, _ in again.loop(epochs=2)] == [5, 6, 7]
    assert list(run_on(tmp_path).loop(data, epochs=2)) == []


@pytest.mark.waits
def test_another_list_of_batches_is_refused(tmp_path):
    x, y = arrays()
    next(run_on(tmp_path / "given").loop([(x,), (y,)], epochs=1))
    for number, data in enumerate(([(x,)], [(y,), (y,), (y,)])):
        directory = tmp_path / str(number)
        for _, step, _ in run_on(directory, save_freq=1).loop([(x,)] * 3, epochs=2):
            if step == 1:
                break
        with pytest.raises((CheckpointMismatchError, DataNotResumableError)):
            next(run_on(directory).loop(data, epochs=2))


def test_each_epoch_of_a_list_begins_at_its_start(tmp_path):
    """Though the one before was left, and the list has grown since."""
    batches, seen = [(0,), (1,), (2,)], []
    with run_on(tmp_path) as run:
        for _ in run.epochs(3):
            for _, (batch,) in run.batches(batches):
                seen.append(batch)
                if batch == 1:
                    break
            batches.append((len(batches),))
    assert seen == [0, 1] * 3


@pytest.mark.parametrize("data", ["arrays", "numbers", "rows"])
def test_a_list_that_may_be_arrays_is_not_guessed_at(data, tmp_path):
    of_two = {"arrays": arrays()[0], "numbers": 1.0, "rows": [1.0, 2.0]}[data]
    with pytest.raises(TypeError, match="A list of arrays is ambiguous"):
        run_on(tmp_path).loop([(of_two,), of_two], epochs=1)


@pytest.mark.parametrize("wrong", [{"batch_size": 2}, {"shuffle": True}])
def test_a_list_of_batches_is_neither_cut_nor_shuffled(wrong, tmp_path):
    with pytest.raises(ValueError, match="is for arrays"):
        run_on(tmp_path).loop([arrays()], epochs=1, **wrong)


def compiled():
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    net.compile("adam", "mse", metrics=["mae"])
    return net


@pytest.mark.everywhere
def test_metrics_that_come_too_late_are_refused_after_the_first_step(tmp_path):
    """Not when a resume lacks them, hours later; what the error says to do works."""
    batches = [(np.ones((2, 1)), np.ones((2, 1)))] * 3
    net, steps = compiled(), []

    def train():
        for _, step, batch in run_on(tmp_path, net=net).loop(batches, epochs=1):
            steps.append(step)
            net.train_on_batch(*batch)

    with pytest.raises(NotSupportedError, match="created after the loop began") as said:
        train()
    assert steps == [0]
    assert "test_on_batch" in str(said.value)
    assert "net: " in said.value.received
    for epochs in (1, 2):
        net = compiled()
        net.test_on_batch(*batches[0])
        net.reset_metrics()
        run = run_on(tmp_path, net=net)
        for _, _step, batch in run.loop(batches, epochs=epochs):
            net.train_on_batch(*batch)
        assert run.step == 3 * epochs


def test_metrics_that_an_evaluation_makes_are_noticed_at_the_save(tmp_path):
    net = compiled()
    epochs = run_on(tmp_path, net=net).epochs(1)
    next(epochs)
    net.test_on_batch(np.ones((2, 1)), np.ones((2, 1)))
    with pytest.raises(NotSupportedError, match="created after the loop began"):
        next(epochs)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="of torch and TensorFlow")
def test_what_cannot_be_restored_is_refused_at_once(tmp_path, backend):
    if backend == "torch":
        import torch

        module = torch.nn.Linear(1, 1)
        module.register_buffer("wide", torch.zeros(1).expand(3))
        with pytest.raises(resilient.NotSupportedError, match="'wide'"):
            run_on(tmp_path, module=module)
        with pytest.raises(RuntimeError, match="uninitialized"):
            run_on(tmp_path, module=torch.nn.LazyLinear(2))
    else:
        import tensorflow as tf

        module = tf.Module()
        module.table = tf.lookup.experimental.MutableHashTable(
            tf.string, tf.int64, default_value=0
        )
        with pytest.raises(resilient.NotSupportedError, match="table, a Mutable"):
            run_on(tmp_path, module=module)
        loose = tf.Variable([[1.0]], shape=[None, 1])
        with pytest.raises(resilient.NotSupportedError, match="unknown shape"):
            run_on(tmp_path, loose=loose)


def test_steps_are_counted_in_one_way(tmp_path):
    """After a resume in the second part the first one's end would be done again."""
    with run_on(tmp_path, v=value()) as run:
        list(run.loop(arrays(), epochs=1, batch_size=BATCH))
        with pytest.raises(ResilientError, match=r"run\.advance(.|\n)*with loop"):
            run.advance()
    with run_on(tmp_path / "steps", v=value(), save_freq=1) as run:
        run.advance()
    again = run_on(tmp_path / "steps", v=value())
    with again, pytest.raises(ResilientError, match=r"run\.loop(.|\n)*with advance"):
        next(again.loop(arrays(), epochs=1))
    once_more = run_on(tmp_path / "steps", v=value())
    with pytest.raises(ResilientError, match=r"run\.loop(.|\n)*with advance"):
        next(once_more.loop(arrays(), epochs=1))


def counting(backend):
    """What counts in an attribute of Python, by the name it is told by."""

    class OfKeras(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.calls = 0

    layer = OfKeras()
    found = {"layer: OfKeras": (layer, layer)}
    if backend == "torch":
        import torch

        class OfTorch(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = 0

        inner = OfTorch()
        found["net: 0"] = (inner, torch.nn.Sequential(inner))
    if backend == "tensorflow":
        import tensorflow as tf

        class OfTensorFlow(tf.Module):
            def __init__(self):
                super().__init__()
                self.calls = 0

        module = OfTensorFlow()
        found["module: OfTensorFlow"] = (module, module)
    return found


@pytest.mark.everywhere
def test_attributes_that_change_are_named_once(tmp_path, backend):
    parts = counting(backend)
    objects = {name.partition(":")[0]: passed for name, (_, passed) in parts.items()}
    run = run_on(tmp_path, save_freq=1, **objects)

    def train():
        for _ in run.loop(arrays(), epochs=1, batch_size=BATCH):
            for part, _ in parts.values():
                part.calls += 1

    with pytest.warns(NotExactWarning, match="attributes changed") as told:
        train()
    assert len(told) == 1
    for name in parts:
        assert f"  {name}.calls" in str(told[0].message)


# Keras on NumPy 2 (keras.Variable.__array__).
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")
@pytest.mark.parametrize("changed", ["another optimizer", "a setting of it"])
def test_another_optimizer_in_the_middle_of_a_loop_is_said_and_refused(
    changed, tmp_path
):
    """Its slots would go to the optimizer that the script makes."""

    def made():
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        net.compile(keras.optimizers.Adam(), "mse", run_eagerly=True)
        net.optimizer.build(net.trainable_variables)
        return net

    def swap(net):
        others = {
            "another optimizer": keras.optimizers.AdamW(),
            "a setting of it": keras.optimizers.Adam(clipnorm=1.0),
        }
        net.optimizer = others[changed]
        net.optimizer.build(net.trainable_variables)

    def train():
        net = made()
        with run_on(tmp_path, net=net, save_freq=1) as run:
            for step in range(3):
                net.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
                if step == 1:
                    swap(net)
                run.advance()

    with pytest.warns(NotExactWarning, match="in the middle of training") as told:
        train()
    (warning,) = [w for w in told if w.category is NotExactWarning]
    *_, line = str(warning.message).split("\n  ")
    again = made()
    with (
        pytest.raises(CheckpointMismatchError, match=re.escape(line)),
        run_on(tmp_path, net=again),
    ):
        pass


# What is beside the loop's own. ----------------------------------------------------


def test_a_directory_of_variables_alone_is_refused(tmp_path):
    total = value()
    with resilient.Checkpoints(tmp_path, [total]) as checkpoints:
        checkpoints.save(3)
    with pytest.raises(CheckpointMismatchError, match=r"\.Checkpoints saved"):
        next(iter(run_on(tmp_path, total=total).loop(arrays(), epochs=1)))


def test_what_was_restored_is_not_kept_while_the_loop_runs(tmp_path):
    """A checkpoint in memory is as large as the state."""

    def states():
        gc.collect()
        return [x for x in gc.get_objects() if type(x) is SavedState]

    before = len(states())
    for _, step, _ in run_on(tmp_path, save_freq=2, total=value()).loop(
        arrays(), epochs=1, batch_size=BATCH
    ):
        if step == 3:
            break
    kept = []
    run = run_on(tmp_path, save_freq=100, total=value())
    for _ in run.epochs(1):
        for _ in run.batches(arrays(), batch_size=BATCH):
            kept.append(len(states()) - before)
            if len(kept) == 2:
                break
        break
    run = run_on(tmp_path, save_freq=100, total=value())
    for _ in run.loop(arrays(), epochs=1, batch_size=BATCH):
        kept.append(len(states()) - before)
    assert set(kept) == {0}
