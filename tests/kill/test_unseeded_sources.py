"""Unseeded runs on other sources than arrays: rolled back, each ends as it did."""

import pytest

from .conftest import MakeRun
from .test_unseeded import roll_back

pytestmark = pytest.mark.sources


@pytest.mark.spread
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("tf_data_shuffled", [9, 18]),
        pytest.param("tf_data_repeated_with_steps", [7], marks=pytest.mark.long),
        pytest.param("tf_data_of_unknown_length", [6], marks=pytest.mark.long),
    ],
)
def test_rolled_back_run_ends_as_it_did(name: str, steps: list[int], run_of: MakeRun):
    """Shuffles without a seed are given one, and it comes out of the checkpoint."""
    roll_back(name, steps, run_of)
