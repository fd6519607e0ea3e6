"""Whether processes draw the batches that they should, before they wait for others."""

import contextlib
from dataclasses import dataclass

import numpy as np
import pytest

from resilient.distributed.checks import (
    compared,
    in_step,
    require_same_arrays,
    require_same_length,
)
from resilient.errors import DataNotResumableError, ResilientError
from resilient.progress import Progress
from resilient.serialization.batches import checksum
from resilient.training.boundaries import BoundaryConsensus

pytestmark = pytest.mark.once


class Heard:
    """The second of two processes; it hears what process 0 says."""

    index, count = 1, 2

    def __init__(self, *said):
        self.said = list(said)

    def broadcast(self, topic, value=None):
        return self.said.pop(0)

    def gather(self, topic, value=None):
        return []


class Drawn:
    """Batches that tell when somebody began to draw them."""

    begun = 0

    def __iter__(self):
        self.begun += 1
        return iter([np.zeros(2), np.ones(2)])


def test_an_iterator_is_made_at_once_even_if_nothing_is_drawn_from_it():
    """To make one draws random numbers; Keras makes one more at an epoch's end."""
    batches = Drawn()
    compared(batches, "x", Heard())
    in_step(batches, "x", Heard())
    assert batches.begun == 2


def test_data_of_unknown_length_ends_in_all_processes_at_once():
    assert len(list(in_step(Drawn(), "x", Heard(True, True, False)))) == 2


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ([True, False], "`x` ends after 1 batches in process 0, and not in process 1"),
        ([True] * 3, "`x` ends after 2 batches in process 1, and not in process 0"),
    ],
)
def test_data_of_unknown_length_that_ends_in_some_is_an_error(said, text):
    with pytest.raises(ResilientError, match=text):
        list(in_step(Drawn(), "x", Heard(*said)))


@dataclass
class Chief:
    """Process 0 of two; it hears what the other has."""

    theirs: object
    index, count = 0, 2

    def broadcast(self, topic, value=None):
        return value

    def gather(self, topic, value=None):
        return [value, self.theirs]


class Other(Heard):
    """Process 1, in the place of a ``Chief``: what it contributes."""

    def __init__(self):
        super().__init__([])

    def gather(self, topic, value=None):
        self.gave = value
        return []


def differing(check, mine, theirs):
    """Compare what process 0 and process 1 have."""
    other = Other()
    check(theirs, "x", other)
    check(mine, "x", Chief(other.gave))


def test_lengths_that_differ_are_an_error_before_training():
    differing(require_same_length, [6, None], [6, None])
    text = "process 1 has batches of `x`: None, steps of an epoch of `x`: 5, process 0 "
    with pytest.raises(ResilientError, match=text):
        differing(require_same_length, [6, None], [None, 5])
    with pytest.raises(ResilientError, match="batches of `x`: 0"):
        differing(require_same_length, [None, None], [0, None])


def test_arrays_that_differ_are_an_error():
    differing(require_same_arrays, {"a": 1}, {"a": 1})
    with pytest.raises(DataNotResumableError, match="process 1 has a of `x`: 2"):
        differing(require_same_arrays, {"a": 1}, {"a": 2})


@pytest.mark.parametrize(
    ("theirs", "shard", "error"),
    [
        (0, 0, None),
        (1, 1, None),
        (1, 0, DataNotResumableError),
        (0, 1, UserWarning),  # another part, and the same batch
    ],
)
def test_the_first_batch_is_compared_by_part(theirs, shard, error):
    batches = [np.zeros(2), np.ones(2)]
    chief = Chief([shard, checksum(batches[theirs])])
    expected = (
        pytest.raises(error)
        if error is DataNotResumableError
        else (pytest.warns(error) if error else contextlib.nullcontext())
    )
    with expected:
        assert len(list(compared(batches, "x", chief))) == 2


def test_a_process_that_goes_on_with_an_epoch_is_an_error():
    agreement = BoundaryConsensus(
        Heard({"at": str(Progress(3, 0, 3)), "save": None}), None, None
    )
    with pytest.raises(ResilientError, match="with no more batches in the epoch"):
        agreement.out_of_batches(Progress(3, 0, 3))
