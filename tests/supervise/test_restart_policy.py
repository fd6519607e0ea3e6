"""When there is no other restart."""

from functools import partial
from itertools import count
from pathlib import Path

import pytest

from resilient.supervise.failures import Ending
from resilient.supervise.options import Options
from resilient.supervise.restart_policy import RestartPolicy

pytestmark = pytest.mark.once

NOTHING, SAVED, ANEW = "nothing", "saved", "anew"  # what an attempt achieved
RUN, OTHER = Path("/runs/one"), Path("/runs/two")
BUG = Ending("error", "ValueError at step 7: bad", 1, "abc", 7)
KILLED = Ending("killed or lost", "it was killed by SIGKILL", 137)
Rules = partial(Options, ["train"])


def stops(rules, *failures):
    """After how many failures it gives up, and why."""
    policy, steps = RestartPolicy(rules), count(1)
    newest = 0
    for number, (ending, made) in enumerate(failures, 1):
        newest = next(steps) if made == SAVED else newest
        why = policy.after(ending, RUN, [newest], made == ANEW)
        if why is not None:
            return number, why
    return None, ""


def test_the_same_failure_three_times_in_a_row_is_given_up():
    number, why = stops(Rules(), (BUG, SAVED), (BUG, NOTHING), (BUG, NOTHING))
    assert number == 3
    assert "3 times in a row" in why
    assert "Received: ValueError at step 7: bad" in why


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


def test_a_newer_checkpoint_between_starts_the_count_again():
    assert stops(Rules(), *[(BUG, NOTHING)] * 2, *[(BUG, SAVED)] * 5)[0] is None


def test_kills_from_outside_are_never_the_same_failure():
    assert stops(Rules(no_progress=99), *[(KILLED, NOTHING)] * 50)[0] is None


def test_restarts_that_bring_no_newer_checkpoint_are_given_up():
    number, why = stops(Rules(no_progress=4), *[(KILLED, NOTHING)] * 9)
    assert number == 5  # a first start and four restarts
    assert "4 restarts in a row" in why
    assert "--no-progress" in why


def test_a_newer_checkpoint_starts_the_count_of_restarts_again():
    failures = [*[(KILLED, NOTHING)] * 4, (KILLED, SAVED), *[(KILLED, NOTHING)] * 4]
    assert stops(Rules(no_progress=4), *failures)[0] == 9


def test_the_limit_on_restarts():
    number, why = stops(Rules(max_restarts=2), *[(KILLED, SAVED)] * 9)
    assert number == 3
    assert "--max-restarts 2" in why
    assert stops(Rules(max_restarts=0), (KILLED, SAVED))[0] == 1


def test_without_a_limit_restarts_that_bring_a_checkpoint_go_on():
    assert stops(Rules(), *[(KILLED, SAVED)] * 1000)[0] is None


def test_failures_without_a_newer_checkpoint_are_counted_for_the_backoff():
    policy = RestartPolicy(Rules())
    delays = []
    for newest in (0, 0, 0, 0, 5, 5):
        policy.after(KILLED, RUN, [newest])
        delays.append(policy.delay(1.0))
    assert delays == [1, 1, 2, 4, 1, 1]


def test_each_directory_has_its_own_checkpoints():
    policy = RestartPolicy(Rules(no_progress=2))
    for directory, newest in [(RUN, 500), (OTHER, 10), (OTHER, 10)]:
        assert policy.after(KILLED, directory, [newest]) is None
    assert "2 restarts in a row" in policy.after(KILLED, RUN, [500])


def test_nothing_is_known_of_a_script_without_directory():
    policy = RestartPolicy(Rules(no_progress=2))
    assert policy.after(KILLED) is None
    assert policy.after(KILLED) is None
    assert "2 restarts in a row" in policy.after(KILLED)


def test_two_restarts_in_a_row_that_train_from_scratch_elsewhere_are_given_up():
    number, why = stops(Rules(), (KILLED, SAVED), (KILLED, ANEW), (KILLED, ANEW))
    assert number == 3
    assert "two restarts in a row trained from scratch in a new directory" in why
    assert "Give the run the same checkpoint_dir" in why
    between = [(KILLED, SAVED), (KILLED, ANEW)] * 5
    assert stops(Rules(), *between)[0] is None


@pytest.mark.parametrize(
    ("failures", "longest"), [(1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (9999, 300)]
)
def test_backoff_doubles_up_to_a_limit_with_full_jitter(failures, longest):
    policy = RestartPolicy(Rules(no_progress=10**6))
    for _ in range(failures):
        policy.after(KILLED)
    assert policy.delay(0.0) == 0
    assert policy.delay(0.5) == longest / 2
    assert policy.delay(1.0) == longest
