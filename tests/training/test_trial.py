"""What a process does differently that `resilient prove` started."""

import keras
import numpy as np
import pytest
from support import fitting
from support.fitting import Interrupt

import resilient
from resilient.saving.digest import BATCH, differing
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


@pytest.fixture
def limited():
    """Limits the epochs and steps of every training, as Keras can."""

    def limit(epochs, steps):
        keras.config.set_max_epochs(epochs)
        keras.config.set_max_steps_per_epoch(steps)

    yield limit
    limit(None, None)


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


@pytest.mark.filterwarnings("ignore:Limiting")
def test_a_fit_is_shortened_as_keras_is_configured(tmp_path, asked, limited):
    """Limits of Keras shorten what `resilient prove` starts, too."""
    asked()
    limited(2, 3)
    fitting.fit(fitting.model(), tmp_path, epochs=5)
    assert [found[:2] for found in digests(tmp_path)] == [
        *((0, 0), (1, 0), (2, 0), (3, 1)),
        *((4, 1), (5, 1), (6, 2)),
    ]


def test_a_loop_is_shortened_as_keras_is_configured(tmp_path, limited):
    limited(2, 3)
    run = resilient.Run(tmp_path, verbose=0)
    steps = [step for _, step, _ in run.loop(fitting.data(), epochs=5, batch_size=4)]
    assert steps == list(range(6))


def test_that_it_is_asked_is_said_once(tmp_path, asked, caplog, monkeypatch):
    """The variables may have been left over."""
    monkeypatch.setattr(files, "said", set())
    monkeypatch.setenv(scratch.VARIABLE, str(tmp_path))
    asked(save_steps=1000)
    for _ in range(2):
        resilient.ResilientFit(None, checkpoint_dir="runs")
    of_trial, of_scratch = caplog.messages
    assert '"save_steps": 1000' in of_trial
    assert f"checkpoints go below {tmp_path}" in of_scratch


@pytest.mark.parametrize(
    "text", ["1", "{", '{"pause": "2"}', '{"save_steps": 0}', "[]"]
)
def test_a_malformed_request_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setenv(TRIAL, text)
    with pytest.raises(ValueError, match="RESILIENT_TRIAL is not what"):
        resilient.ResilientFit(None, checkpoint_dir=tmp_path)


@pytest.mark.spread
def test_it_also_saves_so_often_as_it_is_told(tmp_path, asked):
    asked(save_steps=4)
    fitting.fit(fitting.model(), tmp_path, save_freq="epoch", keep=100, epochs=1)
    assert 4 in fitting.steps(tmp_path)


def batches(directory):
    """What is recorded of the batches that led to each place."""
    return {
        place: {leaves[:8] for _, leaves, names in found if names[0] == BATCH}
        for place, found in recorded(directory).items()
    }


def in_python():
    x, y = fitting.data()
    return [(x[row : row + 4], y[row : row + 4]) for row in range(0, len(x), 4)]


def as_dataset():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices(fitting.data())
    return data.shuffle(24, seed=1).batch(4)


def as_generator():
    tf = pytest.importorskip("tensorflow")
    x, y = fitting.data()
    spec = tuple(tf.TensorSpec((None, *each.shape[1:]), each.dtype) for each in (x, y))
    return tf.data.Dataset.from_generator(in_python, output_signature=spec)


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("source", [None, as_dataset, as_generator])
@pytest.mark.parametrize("together", [1, 2])
def test_the_batches_of_each_step_are_recorded(tmp_path, asked, source, together):
    if together > 1 and keras.backend.backend() == "torch":
        pytest.skip("Keras takes one step a call there")
    asked()
    how = {"save_freq": 2, "epochs": 2}
    if source is not None:
        how |= {"y": None, "batch_size": None, "shuffle": None}

    def train(directory, *stop):
        net = fitting.model(steps_per_execution=together)
        data = {} if source is None else {"x": source()}
        fitting.fit(net, directory, callbacks=[Interrupt(*stop)], **how, **data)

    train(tmp_path / "alone")
    with pytest.raises(fitting.Interrupted):
        train(tmp_path / "killed", 1, 3)
    train(tmp_path / "killed")
    expected = batches(tmp_path / "alone")
    assert batches(tmp_path / "killed") == expected
    start, *steps, _ = expected.values()  # the end of an epoch may have none
    assert start == set()
    assert {len(each) for each in steps} == {1}
    assert len(set().union(*steps)) >= 6 // together


@pytest.mark.spread
def test_other_batches_are_recorded_as_others(tmp_path, asked):
    asked()
    x, _ = fitting.data()
    for change in (0, 1e-6):
        fitting.fit(fitting.model(), tmp_path / str(change), x=x + change, epochs=1)
    one, other = batches(tmp_path / "0"), batches(tmp_path / "1e-06")
    assert [place for place in one if one[place] == other[place]] == [(0, 0, 0)]


@pytest.mark.spread
def test_what_a_callback_does_at_the_end_is_recorded(tmp_path, asked):
    asked()

    class Zeros(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel * 0)

    left = []
    for name, callbacks in (("a", []), ("b", [Zeros()])):
        fitting.fit(fitting.model(), tmp_path / name, epochs=1, callbacks=callbacks)
        left += [e for e in read_events(tmp_path / name) if e["event"] == "left"]
    a, b = left
    assert a["step"] == b["step"] == 6
    (name,) = differing(tuple(a["names"]), a["leaves"], b["leaves"])
    assert name.endswith("kernel")
