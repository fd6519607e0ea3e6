"""Python generators: drawn again, verified, and refused where they are not the same."""

import random
import warnings
from dataclasses import replace

import keras
import numpy as np
import pytest
from support.fitting import (
    Interrupt,
    Interrupted,
    assert_equal,
    model,
    other_seed,
    random_state,
)

import resilient
from resilient import DataNotResumableError, NotExactWarning
from resilient.backends import get_backend
from resilient.data.generator import GeneratorData
from resilient.data.source import SourceContext

pytestmark = [
    pytest.mark.spread,
    pytest.mark.waits,
    pytest.mark.sources,
    pytest.mark.filterwarnings("ignore:.*ran out of data"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
    pytest.mark.filterwarnings("ignore:.*shuffle=True. was passed"),
]


def batches(count=None, seed=0):
    """Batches for the model of ``tests.fitting``, from a generator of their own."""
    generator = np.random.default_rng(seed)
    while count is None or count > 0:
        count = None if count is None else count - 1
        x = generator.normal(size=(4, 3)).astype("float32")
        yield x, x.sum(axis=1, keepdims=True)


def fit(directory, source, **given):
    """Two epochs of six batches; the model, left as it is where it is interrupted."""
    net = model()
    at = given.pop("at", ())
    callbacks = [Interrupt(*at), *given.pop("callbacks", [])]
    arguments = {"epochs": 2, "steps_per_epoch": 6, "verbose": 0, "save_freq": 1}
    try:
        resilient.fit(
            net,
            source,
            checkpoint_dir=directory,
            callbacks=callbacks,
            **arguments | given,
        )
    except Interrupted:
        assert at
    return net


def adapter(data, saved=None, **settings):
    given = SourceContext(get_backend(), verbose=False, saved=saved, **settings)
    return GeneratorData(data, settings=given)


def drawn(one, count):
    """So many batches of a new iterator, as Keras iterates it."""
    one.before_iterator()
    iterator = iter(one.wrap(one.tracked))
    return [next(iterator) for _ in range(count)]


def again(data, position, **settings):
    """An adapter that resumed from a position."""
    one = adapter(data, position, **settings)
    one.resume(position)
    one.seek(position)
    return one


def assert_batches(expected, actual):
    for old, new in zip(expected, actual, strict=True):
        for before, after in zip(old, new, strict=True):
            np.testing.assert_array_equal(before, after)


def from_global_numbers():
    while True:
        yield np.random.rand(2, 3) + random.random(), np.random.rand(2, 1)


@pytest.mark.everywhere
def test_a_generator_goes_on_where_it_was():
    one = adapter(batches())
    expected = drawn(one, 5)
    position = one.position(5, held=True)
    other = again(batches(), position)
    assert_batches(drawn(adapter(batches()), 8)[5:], drawn(other, 3))
    assert other.position(8, held=True).source["drawn"] == 8
    assert len(expected) == 5


def test_nothing_is_lost_that_is_drawn_to_build_the_model():
    one = adapter(batches())
    building = iter(one.tracked)  # under a strategy TensorFlow draws ahead of it
    assert_batches(drawn(adapter(batches()), 1), [next(building) for _ in range(9)][:1])
    assert_batches(drawn(adapter(batches()), 6), drawn(one, 6))


@pytest.mark.everywhere
@pytest.mark.parametrize("given", [0, 1, 2])
def test_within_the_two_batches_that_keras_draws_ahead(given):
    one = adapter(batches())
    drawn(one, given)
    position = one.position(given, held=True)
    assert position.source["drawn"] == 2
    other = again(batches(), position)
    assert_batches(drawn(adapter(batches()), 6)[given:], drawn(other, 6 - given))


def test_a_second_iterator_begins_with_the_first_two_batches():
    """A quirk of Keras, kept: also after a resume between two epochs."""
    one = adapter(batches())
    drawn(one, 6)
    position = one.position(0, held=False)
    expected = drawn(one, 4)
    assert_batches(drawn(adapter(batches()), 2), expected[:2])
    assert_batches(drawn(adapter(batches()), 8)[6:], expected[2:])
    assert_batches(expected, drawn(again(batches(), position), 4))


def test_global_random_numbers_are_drawn_again_and_leave_no_trace():
    np.random.seed(1)
    random.seed(1)
    one = adapter(from_global_numbers())
    expected = drawn(one, 9)
    held = one.position(4, held=True)
    position = replace(held, drawn=9, given=9, pending=[])
    other_seed()
    before = random_state()
    other = adapter(from_global_numbers(), position)
    assert random_state() == before
    other.resume(position)
    other.seek(position)
    assert random_state() == before
    np.testing.assert_array_equal(other._source.last[0], expected[-1][0])


@pytest.mark.everywhere
def test_what_builds_the_model_draws_nothing():
    """Before the position is known, an iterator gives the first two batches only."""
    one = adapter(batches())
    drawn(one, 5)
    position = one.position(5, held=True)
    other = adapter(batches(), position)
    assert_batches(2 * drawn(adapter(batches()), 2), drawn(other, 4))
    other.resume(position)
    other.seek(position)
    assert_batches(drawn(adapter(batches()), 6)[5:], drawn(other, 1))


def test_a_replay_is_done_once():
    calls = []

    def counted():
        for batch in batches():
            calls.append(1)
            yield batch

    one = adapter(counted())
    drawn(one, 7)
    position = one.position(7, held=True)
    calls.clear()
    other = adapter(counted(), position)
    for _ in range(2):
        other.resume(position)
    other.seek(position)
    other.wrap(other.tracked)
    assert len(calls) == 7


def test_two_fits_of_a_script_share_a_generator(tmp_path):
    """The first is over when the script is resumed; the second goes on in it."""
    source = batches()
    fit(tmp_path / "a", source)
    expected = fit(tmp_path / "b", source)
    source = batches()
    fit(tmp_path / "1", source)
    fit(tmp_path / "2", source, at=(1, 2))
    source = batches()
    fit(tmp_path / "1", source)
    assert_equal(expected, fit(tmp_path / "2", source))


def test_a_run_that_is_over_leaves_the_generator_where_it_was(tmp_path):
    calls = []

    def counted():
        for batch in batches():
            calls.append(1)
            yield batch

    done = fit(tmp_path, counted())
    drawn_before = len(calls)
    calls.clear()
    again = fit(tmp_path, counted())
    # On TensorFlow more or less is drawn ahead when the run ends.
    assert len(calls) <= drawn_before
    assert len(calls) >= 12
    assert_equal(done, again)


def test_another_generator_is_refused_and_says_how_to_accept_it(tmp_path):
    fit(tmp_path, batches(seed=0), at=(1, 2))
    with pytest.raises(DataNotResumableError, match="different content now") as found:
        fit(tmp_path, batches(seed=1))
    assert "`x` (a Python generator): batch " in str(found.value)
    assert "seed every random generator in it" in str(found.value)
    assert 'on_data_change="warn"' in str(found.value)


def test_another_generator_is_refused_at_an_epochs_end():
    """Where Keras holds no iterator a replay is verified as well."""
    one = adapter(batches(6))
    drawn(one, 6)
    position = one.position(0, held=False)
    with pytest.raises(DataNotResumableError, match="different content now"):
        drawn(again(batches(6, seed=1), position), 1)


def test_another_generator_is_accepted_and_said_once(tmp_path):
    fit(tmp_path, batches(seed=0), at=(1, 2))
    with pytest.warns(NotExactWarning, match="has different content now") as found:
        fit(tmp_path, batches(seed=1), on_data_change="warn")
    told = [w for w in found if issubclass(w.category, NotExactWarning)]
    assert len(told) == 1
    assert "`x` (a Python generator): batch" in str(told[0].message)


class Draws(keras.callbacks.Callback):
    """Draws from the generator from which the data draws."""

    def on_train_batch_end(self, batch, logs=None):
        np.random.randn()


@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="draws ahead in another thread"
)
def test_draws_of_others_in_between_are_repeated(tmp_path):
    """The generator and a callback draw in turn, also from half a pair of normals."""

    def data():
        while True:
            yield np.random.randn(3, 3), np.random.randn(3, 1)

    def run(directory, **given):
        np.random.seed(1)
        return fit(directory, data(), callbacks=[Draws()], **given)

    expected = run(tmp_path / "whole")
    run(tmp_path / "parts", at=(0, 4))
    run(tmp_path / "parts", at=(1, 2))
    assert_equal(expected, run(tmp_path / "parts"))


def test_too_many_draws_of_others_are_said_at_once(monkeypatch):
    """Each takes kilobytes, so there is a limit; a resume would be refused."""
    monkeypatch.setattr("resilient.data.draws.MOST", 3)
    one = adapter(from_global_numbers())
    one.before_iterator()
    iterator = iter(one.wrap(one.tracked))
    for _ in range(3):
        next(iterator)
        np.random.rand()
    one.position(3, held=True)
    for _ in range(3):
        next(iterator)
        np.random.rand()
    with pytest.warns(NotExactWarning, match="resumes from now on will be refused"):
        one.position(6, held=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        one.position(6, held=True)


@pytest.mark.parametrize("count", [1, 5])
def test_a_shorter_generator_is_refused(count):
    one = adapter(batches())
    drawn(one, 7)
    position = one.position(7, held=True)
    with pytest.raises(DataNotResumableError, match="ended before"):
        again(batches(count), position)


@pytest.mark.parametrize("first", [1, 6])
def test_a_longer_generator_is_refused(first):
    one = adapter(batches(first))
    one.before_iterator()
    assert len(list(one.tracked)) == first
    position = one.position(0, held=False)
    with pytest.raises(DataNotResumableError, match="yields more batches than before"):
        drawn(again(batches(first + 1), position), 1)


def test_an_exhausted_generator_stays_exhausted():
    one = adapter(batches(4))
    one.before_iterator()
    assert len(list(one.tracked)) == 4
    position = one.position(0, held=False)
    other = again(batches(4), position)
    other.before_iterator()
    assert_batches(drawn(adapter(batches(4)), 2), list(other.wrap(other.tracked)))


def test_a_replay_shows_the_number_of_batches(tmp_path, capsys):
    fit(tmp_path, batches(), at=(1, 2))
    capsys.readouterr()
    fit(tmp_path, batches(), verbose=2)
    shown = " ".join(capsys.readouterr().err.split())
    assert "batches of a Python generator" in shown
    assert "Replaying" in shown


def test_a_silent_fit_shows_no_progress(tmp_path, capsys):
    fit(tmp_path, batches(), at=(1, 2))
    capsys.readouterr()
    fit(tmp_path, batches())
    assert "Replaying" not in capsys.readouterr().err


def test_an_empty_generator_is_keras_own_error(tmp_path):
    with pytest.raises((ValueError, IndexError)) as theirs:  # of Keras 3.12 the latter
        model().fit(batches(0))
    with pytest.raises(theirs.type) as ours:
        fit(tmp_path, batches(0))
    assert str(ours.value) == str(theirs.value)


class Listed:
    """An iterable with the two methods."""

    def __iter__(self):
        yield from batches(2)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_validation_on_another_kind_of_data_begins_anew(tmp_path):
    """Validation may change between attempts: nothing of the old one is used."""
    old = {"validation_data": Listed(), "validation_steps": 2}
    fit(tmp_path, batches(), at=(1, 2), **old)
    new, given = batches(seed=1), []
    noted = (given.append(batch) or batch for batch in new)
    with pytest.warns(NotExactWarning, match="validation data changed"):
        fit(tmp_path, batches(), validation_data=noted, validation_steps=2)
    assert_batches(given[:2], [*batches(2, seed=1)])


def test_validation_catches_up_when_it_is_made():
    settings = {"argument": "validation_data"}
    one = adapter(batches(), **settings)
    drawn(one, 5)
    position = one.position(0, held=False)
    other = adapter(batches(), position, **settings)
    other.resume(position)
    assert other._source.count == 5


def test_equal_data_is_no_warning(tmp_path):
    fit(tmp_path, batches(), at=(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        resumed = fit(tmp_path, batches())
    assert_equal(fit(tmp_path / "whole", batches()), resumed)
