"""``digest_every``: a digest of the state so many steps, the same after a resume."""

import time

import keras
import numpy as np
import pytest
from support import fitting
from support.fitting import Interrupt

import resilient
from resilient.saving.digest import differing, digest
from resilient.telemetry.events import read_events

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


def digests(directory):
    """Those of a run: place to what was recorded there, each time."""
    found, names = {}, ()
    for event in read_events(directory):
        if event["event"] == "digest":
            names = tuple(event.get("names", names))
            place = event["step"], event["epoch"], event["batch"]
            found.setdefault(place, []).append(
                (event["digest"], event["leaves"], names)
            )
    return found


def test_a_resumed_fit_has_the_digests_of_one_left_alone(tmp_path):
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    how = {"digest_every": 1, "verbose": 2}  # the progress bar has a clock
    fitting.fit(fitting.model(), alone, callbacks=[Interrupt()], **how)
    fitting.interrupted(killed, save_freq=5, **how)
    fitting.fit(fitting.model(seed=9), killed, callbacks=[Interrupt()], **how)
    expected, found = digests(alone), digests(killed)
    assert [place[0] for place in expected] == list(range(19))  # and the start, 0
    assert found.keys() == expected.keys()
    assert len(found[7, 1, 1]) > 1  # replayed
    for place, ((whole, leaves, names),) in expected.items():
        assert {each[0] for each in found[place]} == {whole}, place
        assert len(leaves) == 8 * len(names)


@pytest.mark.spread
def test_what_differs_first_is_told_by_its_name(tmp_path):
    for delta in (0.0, 1e-6):
        net = fitting.model()
        kernel = net.layers[0].kernel
        kernel.assign(kernel + np.float32(delta))
        fitting.fit(net, tmp_path / str(delta), digest_every=1)
    expected, found = digests(tmp_path / "0.0"), digests(tmp_path / "1e-06")
    assert all(found[p][0][0] != expected[p][0][0] for p in expected)
    ((_, a, names),), ((_, b, _),) = expected[0, 0, 0], found[0, 0, 0]
    (name,) = differing(names, a, b)
    assert name.startswith("variables/")
    assert name.endswith("kernel")


@pytest.mark.spread
def test_a_digest_each_few_steps(tmp_path):
    fitting.fit(fitting.model(), tmp_path, digest_every=4)
    assert [place[0] for place in digests(tmp_path)] == [0, 4, 8, 12, 16]


@pytest.mark.spread(over=["jax"])  # the quicker of the two
@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Keras takes one step a call there"
)
def test_several_steps_in_one_call(tmp_path):
    """They pass multiples of ``digest_every`` without stopping there."""
    net = fitting.model(steps_per_execution=3, run_eagerly=False, jit_compile=False)
    fitting.fit(net, tmp_path, digest_every=4)
    assert [place[0] for place in digests(tmp_path)] == [0, 6, 9, 12, 18]


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Keras takes one step a call there"
)
@pytest.mark.spread(over=["jax"])  # the quicker of the two
@pytest.mark.waits
def test_several_steps_in_one_call_after_a_resume(tmp_path):
    """From a step that is no multiple of ``digest_every``."""

    def train(directory, **given):
        compiled = {"run_eagerly": False, "jit_compile": False}
        net = fitting.model(steps_per_execution=2, **compiled)
        how = {"digest_every": 4, "save_freq": 2} | given
        fitting.fit(net, directory, **how)
        return digests(directory)

    expected = train(tmp_path / "alone", callbacks=[Interrupt()])
    assert [place[0] for place in expected] == [0, 4, 8, 12, 16]
    for step in (3, 5):
        directory = tmp_path / str(step)
        with pytest.raises(fitting.Interrupted):
            train(directory, callbacks=[Interrupt(1, step)])
        assert fitting.steps(directory)[-1] == 5 + step
        assert list(train(directory, callbacks=[Interrupt()])) == list(expected)


class Rows:
    """Batches without a length, from an own position on."""

    def __init__(self):
        self._next = 0

    def __iter__(self):
        x, y = fitting.data()
        while self._next < fitting.STEPS:
            rows = slice(4 * self._next, 4 * self._next + 4)
            self._next += 1
            yield x[rows], y[rows]
        self._next = 0

    def state_dict(self):
        return {"next": self._next}

    def load_state_dict(self, state):
        self._next = state["next"]


def generator():
    yield from Rows()


def pipeline():
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(fitting.data())
    return dataset.filter(lambda x, y: True).batch(4)


ON_TENSORFLOW = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="its data is TensorFlow's own"
)


@pytest.mark.spread
@pytest.mark.waits
@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize(
    ("source", "epochs", "every"),
    [
        (generator, 1, 1),
        (Rows, 2, 4),
        pytest.param(pipeline, 2, 4, marks=ON_TENSORFLOW),
    ],
)
def test_data_of_unknown_length_has_the_same_places(tmp_path, source, epochs, every):
    """Wherever the fit is interrupted, between batches and at an epoch's end."""

    def train(directory, stop):
        how = {"y": None, "batch_size": None, "shuffle": False, "epochs": epochs}
        how |= {"save_freq": 1, "digest_every": every, "callbacks": [stop]}
        fitting.fit(fitting.model(), directory, x=source(), **how)
        return digests(directory)

    expected = train(tmp_path / "alone", Interrupt())
    assert len(expected) > 1
    for at in ((0, 5), (0, None), (1, 2)):
        if at[0] < epochs:
            with pytest.raises(fitting.Interrupted):
                train(tmp_path / str(at), Interrupt(*at))
            found = train(tmp_path / str(at), Interrupt())
            assert list(found) == list(expected), at
            for place, ((whole, *_),) in expected.items():
                assert {each[0] for each in found[place]} == {whole}, (at, place)


def test_what_a_checkpoint_holds_was_recorded_before(tmp_path, monkeypatch):
    """So that a run that resumes from it lacks no digest."""

    def slowly(content):
        time.sleep(0.2)
        return digest(content)

    monkeypatch.setattr("resilient.saving.digest.digest", slowly)
    fitting.fit(fitting.model(), tmp_path, digest_every=4, save_freq=5, epochs=1)
    order = [
        (event["event"], event["step"])
        for event in read_events(tmp_path)
        if event["event"] in ("digest", "saved")
    ]
    assert order.index(("digest", 4)) < order.index(("saved", 5))


@pytest.mark.spread
def test_digests_of_a_custom_loop(tmp_path):
    def train(directory, stop):
        net = fitting.model()
        net.train_on_batch(*fitting.data(4))
        run = resilient.Run(
            directory, model=net, save_freq=5, digest_every=1, verbose=0
        )
        for _, step, (x, y) in run.loop(fitting.data(), epochs=2, batch_size=4):
            run.log(loss=net.train_on_batch(x, y))
            if step == stop:
                raise fitting.Interrupted

    train(tmp_path / "alone", None)
    with pytest.raises(fitting.Interrupted):
        train(tmp_path / "killed", 7)
    train(tmp_path / "killed", None)
    expected, found = digests(tmp_path / "alone"), digests(tmp_path / "killed")
    assert found.keys() == expected.keys()
    assert len(expected) == 13
    for place, ((whole, *_),) in expected.items():
        assert {each[0] for each in found[place]} == {whole}, place


@pytest.fixture
def last_one_fails(monkeypatch):
    """The digest of the last state cannot be computed."""

    def failing(content):
        if content.progress.step > 15:
            raise RuntimeError("no digest")
        return digest(content)

    monkeypatch.setattr("resilient.saving.digest.digest", failing)


@pytest.mark.spread
def test_an_error_of_the_last_digest_is_raised(tmp_path, last_one_fails):
    with pytest.raises(RuntimeError, match="no digest"):
        fitting.fit(fitting.model(), tmp_path, digest_every=9)


@pytest.mark.spread
def test_an_error_of_the_last_digest_hides_no_other(tmp_path, last_one_fails):
    how = {"digest_every": 16, "callbacks": [Interrupt(2, 4)]}
    with pytest.raises(fitting.Interrupted) as caught:
        fitting.fit(fitting.model(), tmp_path, save_freq="epoch", **how)
    assert any("no digest" in note for note in caught.value.__notes__)


def test_the_start_of_a_run_is_recorded_once(tmp_path):
    """Code between ``with`` and the loop may change the state."""
    with resilient.Run(tmp_path, digest_every=1, verbose=0) as run:
        run.log(loss=1.0)
        for _ in run.loop([(np.zeros(1),)] * 2, epochs=1):
            pass
    assert {place: len(found) for place, found in digests(tmp_path).items()} == {
        (0, 0, 0): 1,
        (1, 0, 1): 1,
        (2, 1, 0): 1,
    }


@pytest.mark.parametrize("steps", [3, 300])
def test_each_number_of_a_history_counts(tmp_path, steps):
    """Few numbers are text in ``run.json``, many are arrays beside it."""

    def train(number):
        run = resilient.Run(tmp_path / str(number), digest_every=steps, verbose=0)
        for _, step, _ in run.loop([(np.zeros(1),)] * steps, epochs=1):
            run.log(loss=number if step == 1 else 0.0, other=1.0)
        (_, ((whole, leaves, names),)) = digests(tmp_path / str(number)).values()
        return whole, leaves, names

    one, other = train(1.0), train(1.0 + 2**-50)
    assert one[0] != other[0]
    (name,) = differing(one[2], one[1], other[1])
    assert "history" in name
    assert "loss" in name


@pytest.mark.spread
def test_a_fit_without_it_records_none(tmp_path):
    fitting.fit(fitting.model(), tmp_path)
    assert digests(tmp_path) == {}
