"""New interpreters: what a user does who runs ``python script.py`` again."""

import pytest

from .conftest import Expected, MakeRun
from .harness import Fresh, assert_same


@pytest.mark.long  # `nox -s exact` has one of each backend
@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("all_at_once", ["train_batch_end@1:3", "epoch_end@2"]),
        ("convolution", ["train_batch_end@1:5"]),
    ],
)
def test_resumed_by_a_new_interpreter(
    name, kills, run_of: MakeRun, uninterrupted: Expected
):
    """Nothing of a resume comes from the process that forked the others."""
    run = run_of(name, options={"save_freq": 2})
    for kill in kills:
        assert run(kill).killed
        run.server = Fresh()
    assert_same(uninterrupted(name), run().record)
