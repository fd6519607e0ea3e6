"""A history that nobody logged."""

import numpy as np
import pytest

from resilient.serialization.schema import MalformedError
from resilient.training.loop.history import LogHistory

STEPS, VALUES = np.array([1, 2]), np.array([0.5, 0.25])
ODD = {
    "no pairs": {"loss": [STEPS]},
    "three of them": {"loss": [STEPS, VALUES, VALUES]},
    "a number too few": {"loss": [STEPS, VALUES[:1]]},
    "no number": {"loss": [STEPS[:0], VALUES[:0]]},
    "steps that are none": {"loss": [VALUES, VALUES]},
    "texts": {"loss": [STEPS, "ab"]},
    "no name": {3: [STEPS, VALUES]},
    "no names": [[STEPS, VALUES]],
    "nothing": None,
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_a_history_that_nobody_logged(odd):
    history = LogHistory()
    history.restore({"loss": [STEPS, VALUES]})
    with pytest.raises(MalformedError, match="the history"):
        history.restore(odd)
    assert dict(history) == {"loss": [0.5, 0.25]}
    assert history.last(since=2) == {"loss": 0.25}
