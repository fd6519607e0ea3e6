"""What a process does differently that `resilient prove` started."""

import keras
import numpy as np
import pytest
from support import fitting
from support.fitting import Interrupt

import resilient
from resilient.saving.digest import differing
from resilient.storage import files, scratch
from resilient.telemetry.events import read_events
from resilient.training.options import TRIAL
from resilient.training.trial import Trial

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


@pytest.fixture
def asked(monkeypatch):
    def ask(**what):
        for name, value in Trial(**what).environment().items():
            monkeypatch.setenv(name, value)

    return ask


def digests(directory):
    return [
        (event["step"], event["epoch"], event["digest"])
        for event in read_events(directory)
        if event["event"] == "digest"
    ]


def recorded(directory):
    """The digests of a run: place to what was recorded there, each time."""
    found, names = {}, ()
    for event in read_events(directory):
        if event["event"] == "digest":
            names = tuple(event.get("names", names))
            place = event["step"], event["epoch"], event["batch"]
            found.setdefault(place, []).append(
                (event["digest"], event["leaves"], names)
            )
    return found


def killed_and_resumed(directory, **given):
    """The digests of each place, left alone and interrupted, as (alone, resumed)."""
    alone, killed = directory / "alone", directory / "killed"
    fitting.fit(fitting.model(), alone, callbacks=[Interrupt()], **given)
    fitting.interrupted(killed, save_freq=5, **given)
    fitting.fit(fitting.model(seed=9), killed, callbacks=[Interrupt()], **given)
    return recorded(alone), recorded(killed)


def test_a_resumed_fit_has_the_digests_of_one_left_alone(tmp_path, asked):
    asked()
    # The progress bar has a clock.
    expected, found = killed_and_resumed(tmp_path, verbose=2)
    assert [place[0] for place in expected] == list(range(19))  # and the start, 0
    assert found.keys() == expected.keys()
    assert len(found[7, 1, 1]) > 1  # replayed
    for place, ((whole, leaves, names),) in expected.items():
        assert {each[0] for each in found[place]} == {whole}, place
        assert len(leaves) == 8 * len(names)


@pytest.mark.spread
def test_the_leaf_that_differs_first_is_named(tmp_path, asked):
    asked()
    for delta in (0.0, 1e-6):
        net = fitting.model()
        kernel = net.layers[0].kernel
        kernel.assign(kernel + np.float32(delta))
        fitting.fit(net, tmp_path / str(delta))
    expected, found = recorded(tmp_path / "0.0"), recorded(tmp_path / "1e-06")
    assert all(found[p][0][0] != expected[p][0][0] for p in expected)
    ((_, a, names),), ((_, b, _),) = expected[0, 0, 0], found[0, 0, 0]
    (name,) = differing(names, a, b)
    assert name.startswith("variables/")
    assert name.endswith("kernel")


def rows():
    x, y = fitting.data()
    for row in range(0, 4 * fitting.STEPS, 4):
        yield x[row : row + 4], y[row : row + 4]


@pytest.mark.spread
@pytest.mark.waits
@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_data_of_unknown_length_has_the_same_places(tmp_path, asked):
    asked()

    def train(directory, stop):
        how = {"y": None, "batch_size": None, "shuffle": False, "epochs": 1}
        how |= {"save_freq": 1, "callbacks": [stop]}
        fitting.fit(fitting.model(), directory, x=rows(), **how)
        return recorded(directory)

    expected = train(tmp_path / "alone", Interrupt())
    assert len(expected) > 1
    for at in ((0, 5), (0, None)):
        with pytest.raises(fitting.Interrupted):
            train(tmp_path / str(at), Interrupt(*at))
        found = train(tmp_path / str(at), Interrupt())
        assert list(found) == list(expected), at


def test_a_checkpoint_is_saved_once_its_digest_is_recorded(tmp_path, asked):
    """So that a run that resumes from it lacks no digest."""
    asked()
    fitting.fit(fitting.model(), tmp_path, save_freq=5, epochs=1)
    order = [
        (event["event"], event["step"])
        for event in read_events(tmp_path)
        if event["event"] in ("digest", "saved")
    ]
    assert order.index(("digest", 4)) < order.index(("saved", 5))


@pytest.mark.spread
def test_digests_of_a_custom_loop(tmp_path, asked):
    asked()

    def train(directory, stop):
        net = fitting.model()
        net.train_on_batch(*fitting.data(4))
        run = resilient.Run(directory, model=net, save_freq=5, verbose=0)
        for _, step, (x, y) in run.loop(fitting.data(), epochs=2, batch_size=4):
            run.log(loss=net.train_on_batch(x, y))
            if step == stop:
                raise fitting.Interrupted

    train(tmp_path / "alone", None)
    with pytest.raises(fitting.Interrupted):
        train(tmp_path / "killed", 7)
    train(tmp_path / "killed", None)
    expected, found = recorded(tmp_path / "alone"), recorded(tmp_path / "killed")
    assert found.keys() == expected.keys()
    assert len(expected) == 13
    for place, ((whole, *_),) in expected.items():
        assert {each[0] for each in found[place]} == {whole}, place


def test_the_start_of_a_run_is_recorded_once(tmp_path, asked):
    """Code between ``with`` and the loop may change the state."""
    asked()
    with resilient.Run(tmp_path, verbose=0) as run:
        run.log(loss=1.0)
        for _ in run.loop([(np.zeros(1),)] * 2, epochs=1):
            pass
    assert {place: len(found) for place, found in recorded(tmp_path).items()} == {
        (0, 0, 0): 1,
        (1, 0, 1): 1,
        (2, 1, 0): 1,
    }


@pytest.mark.parametrize("steps", [3, 300])
def test_each_number_of_a_history_counts(tmp_path, asked, steps):
    """Few numbers are text in ``run.json``, many are arrays beside it."""
    asked()

    def train(number):
        run = resilient.Run(tmp_path / str(number), verbose=0)
        for _, step, _ in run.loop([(np.zeros(1),)] * steps, epochs=1):
            run.log(loss=number if step == 1 else 0.0, other=1.0)
        *_, ((whole, leaves, names),) = recorded(tmp_path / str(number)).values()
        return whole, leaves, names

    one, other = train(1.0), train(1.0 + 2**-50)
    assert one[0] != other[0]
    (name,) = differing(one[2], one[1], other[1])
    assert "history" in name
    assert "loss" in name


@pytest.mark.spread
def test_a_fit_that_nobody_proves_records_none(tmp_path):
    fitting.fit(fitting.model(), tmp_path)
    assert recorded(tmp_path) == {}


def test_a_fit_is_shortened_and_records_each_step(tmp_path, asked):
    asked(epochs=2, steps=3)
    x, y = fitting.data()
    net = fitting.model()
    history = fitting.fit(net, tmp_path, validation_data=(x, y), initial_epoch=1)
    assert history.epoch == [1, 2]  # two, from the first of the script on
    fitting.fit(fitting.model(), tmp_path / "2", epochs=5)
    assert [found[:2] for found in digests(tmp_path / "2")] == [
        *((0, 0), (1, 0), (2, 0), (3, 1)),
        *((4, 1), (5, 1), (6, 2)),
    ]


class Own(keras.Sequential):
    """Has a ``fit`` that takes anything."""

    def fit(self, *args, **kwargs):
        return super().fit(*args, **kwargs)


@pytest.mark.spread
@pytest.mark.parametrize("data_only", [False, True])
def test_a_fit_of_ones_own_is_shortened(tmp_path, asked, data_only):
    asked(epochs=2, steps=3, data_only=data_only)
    seen, (x, y) = Interrupt(), fitting.data()
    how = {"epochs": 5, "callbacks": [seen], "validation_data": (x, y), "verbose": 0}
    net = fitting.model(cls=Own)
    resilient.fit(net, x, y, 4, checkpoint_dir=tmp_path, **how)
    assert fitting.steps(tmp_path)[-1] == 6
    assert len(seen.seen) == (0 if data_only else 6)


@pytest.mark.spread
def test_each_epoch_has_the_first_batches_of_its_own(tmp_path, asked):
    """They do not go on where the epoch before ended: 4 of 6 batches each time."""
    asked(steps=4, data_only=True)
    fitting.fit(fitting.model(), tmp_path, shuffle=False)
    first, second = (
        [d for _, epoch, d in digests(tmp_path) if epoch == number] for number in (0, 1)
    )
    assert len(first) == 4
    assert first == second


def test_that_it_is_asked_is_said_once(tmp_path, asked, caplog, monkeypatch):
    """The variables may have been left over."""
    monkeypatch.setattr(files, "said", set())
    monkeypatch.setenv(scratch.VARIABLE, str(tmp_path))
    asked(epochs=2, steps=1000)
    for _ in range(2):
        resilient.ResilientFit(None, checkpoint_dir="runs")
    of_trial, of_scratch = caplog.messages
    assert '"epochs": 2, "steps": 1000' in of_trial
    assert f"checkpoints go below {tmp_path}" in of_scratch


@pytest.mark.parametrize("text", ["1", "{", '{"epochs": "2"}', '{"steps": 0}', "[]"])
def test_a_malformed_request_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setenv(TRIAL, text)
    with pytest.raises(ValueError, match="RESILIENT_TRIAL is not what"):
        resilient.ResilientFit(None, checkpoint_dir=tmp_path)


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Keras takes one step a call there"
)
@pytest.mark.parametrize("data_only", [False, True])
def test_steps_that_are_taken_together_stay_together(tmp_path, asked, data_only):
    asked(epochs=2, steps=3, data_only=data_only)
    how = {"run_eagerly": False, "jit_compile": False}
    net = fitting.model(steps_per_execution=2, **how)
    fitting.fit(net, tmp_path)
    assert int(net.optimizer.iterations.numpy()) == (0 if data_only else 4)
    assert fitting.steps(tmp_path)[-1] == 4
    assert [found[:2] for found in digests(tmp_path)][-1] == (4, 1 if data_only else 2)


@pytest.mark.spread
def test_it_also_saves_so_often_as_it_is_told(tmp_path, asked):
    asked(save_steps=4)
    fitting.fit(fitting.model(), tmp_path, save_freq="epoch", keep=100, epochs=1)
    assert 4 in fitting.steps(tmp_path)


@pytest.mark.spread
def test_a_fit_that_only_draws_trains_nothing(tmp_path, asked):
    asked(data_only=True)
    net = fitting.model()
    before = fitting.values(net)
    x, y = fitting.data()
    seen = Interrupt()
    fitting.fit(net, tmp_path, callbacks=[seen], validation_data=(x, y))
    after = [np.array(keras.ops.convert_to_numpy(v)) for v in net.trainable_variables]
    for old, new in zip(before, after, strict=False):
        np.testing.assert_array_equal(old, new)
    assert seen.seen == []
    assert [step for step, *_ in digests(tmp_path)] == list(range(1, 19))
    fitting.fit(net, tmp_path / "other", x=fitting.data(seed=1)[0])
    assert not {d for *_, d in digests(tmp_path)} & {
        d for *_, d in digests(tmp_path / "other")
    }


@pytest.mark.parametrize("on_nan", ["stop", resilient.Rollback(steps=1, skip=2)])
def test_a_fit_that_only_draws_has_no_losses_to_check(tmp_path, asked, on_nan):
    asked(data_only=True)
    best = resilient.best(1, monitor="loss")
    fitting.fit(
        fitting.model(), tmp_path, on_nan=on_nan, loss_spike=3.0, keep=best, epochs=1
    )
    assert [step for step, *_ in digests(tmp_path)] == list(range(1, 7))


@pytest.mark.spread
def test_a_fit_trains_again_once_it_is_not_asked_any_more(tmp_path, asked, monkeypatch):
    asked(data_only=True)
    net = fitting.model()
    before = fitting.values(net)
    fitting.fit(net, tmp_path, epochs=1)
    monkeypatch.delenv(TRIAL)
    fitting.fit(net, tmp_path / "trained", epochs=1)
    assert any(
        not np.array_equal(old, new)
        for old, new in zip(before, fitting.values(net), strict=False)
    )


@pytest.mark.spread
def test_batches_are_drawn_in_the_same_order_after_a_resume(tmp_path, asked):
    asked(data_only=True, save_steps=4)

    def draw(directory, epochs):
        net = fitting.model()
        fitting.fit(net, directory, epochs=epochs)

    draw(tmp_path / "alone", 3)
    draw(tmp_path / "stopped", 2)
    draw(tmp_path / "stopped", 3)
    assert digests(tmp_path / "stopped") == digests(tmp_path / "alone")


def test_a_loop_that_only_draws_never_gets_to_its_body(tmp_path, asked):
    asked(data_only=True, epochs=2, steps=3)
    run = resilient.Run(tmp_path, save_freq=2, verbose=0)
    for _ in run.loop(fitting.data(), epochs=5, batch_size=4):
        raise AssertionError
    assert [found[:2] for found in digests(tmp_path)] == [
        *((1, 0), (2, 0), (3, 0)),
        *((4, 1), (5, 1), (6, 1)),
    ]
    assert run.step == 6
