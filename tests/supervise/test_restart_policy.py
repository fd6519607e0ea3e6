"""When there is no other restart."""

from dataclasses import replace
from functools import partial

import pytest

from resilient.supervise.failures import Ending
from resilient.supervise.headway import Gain
from resilient.supervise.options import Options
from resilient.supervise.restart_policy import RestartPolicy

pytestmark = pytest.mark.once

NOTHING = Gain(step=False, checkpoint=False)
STEP = Gain(step=True, checkpoint=False)
SAVED = Gain(step=True, checkpoint=True)
BUG = Ending("error", "ValueError at step 7: bad", 1, "abc", 7)
KILLED = Ending("killed", "it was killed by SIGKILL", 137)
Rules = partial(Options, ["train"])


def stops(rules, *failures):
    """After how many failures it gives up, and why."""
    policy = RestartPolicy(rules)
    for number, (ending, made) in enumerate(failures, 1):
        if (why := policy.after(ending, made)) is not None:
            return number, why
    return None, ""


def test_the_same_failure_three_times_in_a_row_is_given_up():
    number, why = stops(Rules(), (BUG, SAVED), (BUG, NOTHING), (BUG, NOTHING))
    assert number == 3
    assert "3 times in a row" in why
    assert "Received: ValueError at step 7: bad" in why


@pytest.mark.parametrize(
    ("traced", "advice"),
    [(True, "the traceback is in the output above"), (False, "why it exits with this")],
)
def test_only_a_traceback_that_was_printed_is_pointed_to(traced, advice):
    _, why = stops(Rules(same_failure=1), (replace(BUG, traced=traced), SAVED))
    assert advice in why
    assert ("traceback" in why) is traced


def test_the_same_failure_may_come_as_often_as_the_user_says():
    assert stops(Rules(same_failure=1), (BUG, SAVED))[0] == 1
    assert stops(Rules(same_failure=2), *[(BUG, NOTHING)] * 2)[0] == 2


@pytest.mark.parametrize(
    "other",
    [
        Ending("error", "", 1, "abc", 8),
        Ending("error", "", 1, "def", 7),
        Ending("out of memory", "", 1, "abc", 7),
        KILLED,
    ],
)
def test_another_failure_between_starts_the_count_again(other):
    failures = [(BUG, NOTHING), (BUG, NOTHING), (other, NOTHING)]
    assert stops(Rules(), *failures, *failures)[0] is None


@pytest.mark.parametrize("made", [STEP, SAVED])
def test_progress_between_starts_the_count_again(made):
    assert stops(Rules(), *[(BUG, NOTHING)] * 2, *[(BUG, made)] * 5)[0] is None


def test_a_failure_whose_step_is_not_exact_needs_a_checkpoint_for_progress():
    """The heartbeat's step is a little more or less each time."""
    memory = Ending("out of memory", "", 137, "SIGKILL for lack of memory")
    assert stops(Rules(), *[(memory, STEP)] * 3)[0] == 3
    assert stops(Rules(), *[(memory, SAVED)] * 9)[0] is None


def test_kills_from_outside_are_never_the_same_failure():
    assert stops(Rules(no_progress=99), *[(KILLED, NOTHING)] * 50)[0] is None


def test_restarts_that_bring_no_newer_checkpoint_are_given_up():
    number, why = stops(Rules(no_progress=4), *[(KILLED, STEP)] * 9)
    assert number == 5  # a first start and four restarts
    assert "4 restarts in a row" in why
    assert "--no-progress" in why


def test_a_newer_checkpoint_starts_the_count_of_restarts_again():
    failures = [*[(KILLED, STEP)] * 4, (KILLED, SAVED), *[(KILLED, STEP)] * 4]
    assert stops(Rules(no_progress=4), *failures)[0] == 9


def test_the_limit_on_restarts():
    number, why = stops(Rules(max_restarts=2), *[(KILLED, SAVED)] * 9)
    assert number == 3
    assert "--max-restarts 2" in why
    assert stops(Rules(max_restarts=0), (KILLED, SAVED))[0] == 1


def test_without_a_limit_restarts_that_bring_a_checkpoint_go_on():
    assert stops(Rules(), *[(KILLED, SAVED)] * 1000)[0] is None


def test_failures_without_progress_are_counted_for_the_backoff():
    policy = RestartPolicy(Rules())
    delays = []
    for gain in (SAVED, NOTHING, NOTHING, NOTHING, STEP, NOTHING):
        policy.after(KILLED, gain)
        delays.append(policy.delay(1.0))
    assert delays == [1, 1, 2, 4, 1, 1]


@pytest.mark.parametrize(
    ("failures", "longest"), [(1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (9999, 300)]
)
def test_backoff_doubles_up_to_a_limit_with_full_jitter(failures, longest):
    policy = RestartPolicy(Rules(no_progress=10**6))
    for _ in range(failures):
        policy.after(KILLED, NOTHING)
    assert policy.delay(0.0) == 0
    assert policy.delay(0.5) == longest / 2
    assert policy.delay(1.0) == longest
