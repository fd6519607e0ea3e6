"""Whether processes draw the batches that they should, before they wait for others."""

import numpy as np
import pytest

from resilient.distributed.checks.batches import (
    compared,
    in_step,
    require_same_arrays,
    require_same_length,
)
from resilient.errors import DataNotResumableError, ResilientError
from resilient.progress import Progress
from resilient.training.consensus import BoundaryConsensus

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
        ([True, False], "after 1 batches `x` does not end in process 1, and does in"),
        ([True, True, True], "after 2 batches `x` does end in process 1, and does not"),
    ],
)
def test_data_of_unknown_length_that_ends_in_some_is_an_error(said, text):
    with pytest.raises(ResilientError, match=text):
        list(in_step(Drawn(), "x", Heard(*said)))


def test_lengths_that_differ_are_an_error_before_training():
    require_same_length([6, None], "x", Heard([[6, None], [6, None]]))
    said = [[6, None], [None, 5]]
    with pytest.raises(ResilientError, match=r"6 batches, an unknown .* \(5 steps"):
        require_same_length([None, 5], "x", Heard(said))


def test_arrays_that_differ_are_an_error():
    require_same_arrays({"a": 1}, "x", Heard([{"a": 1}, {"a": 1}]))
    with pytest.raises(DataNotResumableError, match=r"processes \[1\] have different"):
        require_same_arrays({"a": 2}, "x", Heard([{"a": 1}, {"a": 2}]))


def test_a_process_that_goes_on_with_an_epoch_is_an_error():
    agreement = BoundaryConsensus(
        Heard({"at": str(Progress(3, 0, 3)), "save": None}), None, None
    )
    with pytest.raises(ResilientError, match="with no more batches in the epoch"):
        agreement.out_of_batches(Progress(3, 0, 3))
