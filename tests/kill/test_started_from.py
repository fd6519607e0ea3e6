"""Runs that begin with the weights of another: killed before and after they saved."""

import pytest

from .conftest import Expected, MakeRun
from .harness import assert_same


@pytest.mark.spread
@pytest.mark.parametrize(
    "layers", [pytest.param(None, marks=pytest.mark.long), ".*bias"]
)
def test_killed_run_that_started_from_another(
    layers: str | None, run_of: MakeRun, uninterrupted: Expected
):
    """Equal to the run that was left alone; what trained before stays as it is."""
    source = run_of("dense", options={"save_freq": "epoch"})
    source(epochs=1)
    checkpoints = source.committed()
    options = {
        "save_freq": 3,
        "start_from": str(checkpoints[-1].parent),
        "start_layers": layers,
    }
    alone = run_of("dense", options=options)()
    run = run_of("dense", options=options)
    assert run("train_batch_end@0:1").killed
    assert not run.committed()
    assert run("train_batch_end@1:4").killed
    assert run.committed()
    last = run()
    assert last.trained[0][0] == 1
    assert_same(alone.record, last.record)
    with pytest.raises(AssertionError):
        assert_same(uninterrupted("dense"), last.record)
    assert source.committed() == checkpoints


@pytest.mark.long  # as a fit does
def test_killed_loop_that_started_from_another(run_of: MakeRun):
    """Equal to the loop that was left alone, whether it had saved or not."""
    source = run_of("changing", options={"save_freq": "epoch"})
    trained = source().record
    path = str(source.committed()[0])
    options = {"save_freq": 3, "start_from": path}
    alone = run_of("changing", options=options)().record
    run = run_of("changing", options=options)
    assert run("step@1").killed
    assert not run.committed()
    assert run("step@8").killed
    assert run.committed()
    assert_same(alone, run().record)
    with pytest.raises(AssertionError):
        assert_same(trained, alone)
