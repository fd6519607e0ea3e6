"""Loops of users' own: left alone they are the plain loop; killed, they are as well."""

from collections.abc import Callable

import pytest

from .conftest import MakeRun
from .harness import Run, Server, assert_same
from .loops import LOOPS
from .record import Record

Expected = Callable[[str], Record]
SHARED = ("keras_loops", "shapes")


@pytest.fixture(scope="session")
def left_alone(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Record]:
    """What a loop leaves that nothing happened to."""
    known: dict[str, Record] = {}

    def expected(name: str) -> Record:
        if name not in known:
            run = Run(server, name, tmp_path_factory.mktemp(name))
            known[name] = run(mode="keras" if LOOPS[name].plain else "resilient").record
        return known[name]

    return expected


# Loops that every backend can run; each has loops of its own besides.
OF_ALL = [n for n, loop in LOOPS.items() if loop.train.__module__.endswith(SHARED)]
NAMES = [
    pytest.param(
        name,
        marks=[pytest.mark.spread] * (name in OF_ALL)
        + [pytest.mark.long] * loop.in_exact,
    )
    for name, loop in LOOPS.items()
]


@pytest.mark.parametrize("name", NAMES, scope="session")
def test_killed_loop_ends_as_the_uninterrupted_one(
    name: str, run_of: MakeRun, left_alone: Expected
):
    """SIGKILL in several steps, and nothing tells the difference."""
    options = {"save_freq": LOOPS[name].save_freq}
    background = list(LOOPS).index(name) % 2 == 1  # every other one
    run = run_of(name, options=options, background=background)
    for kill in LOOPS[name].kills:
        assert run(kill).killed, f"{kill} was never reached"
    assert run.committed(), "killed before the first checkpoint: nothing was resumed"
    assert_same(left_alone(name), run().record)


@pytest.mark.long  # the one above compares with the plain loop, too
@pytest.mark.parametrize("name", [n for n in LOOPS if LOOPS[n].plain], scope="session")
def test_uninterrupted_run_is_the_plain_loop(
    name: str, run_of: MakeRun, left_alone: Expected
):
    """Saving changes no byte of what training leaves."""
    run = run_of(name, options={"save_freq": LOOPS[name].save_freq})
    assert_same(left_alone(name), run().record)


@pytest.mark.spread
def test_finished_loop_is_not_trained_again(run_of: MakeRun, left_alone: Expected):
    run = run_of("two_loops")
    assert run().trained
    again = run()
    assert not again.trained
    assert_same(left_alone("two_loops"), again.record)


@pytest.mark.long  # `nox -s exact` asks loops to stop on each backend
def test_stopped_by_a_signal_nothing_is_lost(run_of: MakeRun, left_alone: Expected):
    """SIGTERM saves that very step; the next attempt begins with the one after it."""
    run = run_of("epochs_and_batches")
    assert run("step@8 SIGTERM").status == 143
    end = run()
    assert end.trained[0] == (0, 9)
    assert_same(left_alone("epochs_and_batches"), end.record)


@pytest.mark.long  # `nox -s exact` kills loops in saves on each backend
def test_killed_at_each_step_of_saves(run_of: MakeRun, left_alone: Expected):
    """Before calls that change the file system: the last checkpoint stays."""
    name = "without_an_iterator"
    run = run_of(name, options={"save_freq": 1, "keep": 1})
    for number in (9, 21, 30, 40, 52):
        before = [path.name for path in run.committed()]
        run(f"call@{number}")
        after = [path.name for path in run.committed()]
        assert not before or max(after) >= max(before), "a commit was undone"
    assert_same(left_alone(name), run().record)
