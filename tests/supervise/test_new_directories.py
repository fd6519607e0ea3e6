"""Restarts that train in another directory than the attempt before."""

import json
import time

import pytest

from resilient.supervise.restart_policy import Course
from resilient.telemetry.events import Events
from resilient.telemetry.heartbeat import Beat

pytestmark = pytest.mark.once

# What a script does: `train_in(name, step)` begins a run, `ended()` ends it.
RUNS = """
def train_in(name, step=5, phase="training"):
    global heart
    where = directory / name
    where.mkdir(exist_ok=True)
    own = Events(where)
    own.emit("started")
    heart = Heartbeat(own.attempt, where, [Path(os.environ["RESILIENT_HEARTBEAT"])])
    train(step, phase)
    time.sleep(0.4)

def ended():
    train(9, "ended")
    time.sleep(0.4)

def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""
SAYS = "This attempt trains in a new directory"


def named(run, *names):
    """The supervisor's events in the runs."""
    lines = []
    for path in run.directory.glob("*/events.jsonl"):
        lines += path.read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [event for event in found if event["event"] in names]


def test_a_new_directory_in_each_start_is_said_and_given_up_the_second_time(supervise):
    run = supervise(RUNS + "\ntrain_in(f'run-{attempt}')\ndie()\n")
    code, _, err = run.end()
    assert code == 137
    assert len(run.attempts()) == 3
    assert err.count(SAYS) == 2
    first, second = (run.directory / f"run-{n}" for n in (0, 1))
    assert f"{SAYS}, {second}; the one before was interrupted in {first}." in err
    assert "two restarts in a row trained from scratch in a new directory" in err
    (gave_up,) = named(run, "gave up")
    assert gave_up["status"] == 137


def test_folds_in_a_new_directory_in_each_start_are_said(supervise):
    run = supervise(
        RUNS
        + """
train_in(f"{attempt}-fold-0")
ended()
train_in(f"{attempt}-fold-1")
if attempt == 0:
    die()
ended()
"""
    )
    code, _, err = run.end()
    assert code == 0
    assert err.count(SAYS) == 1


FOLDS = """
for fold in range(3):
    if (directory / f"done-{fold}").exists():
        continue
    train_in(f"fold-{fold}")
    ended()
    (directory / f"done-{fold}").touch()
    train_in(f"fold-{fold + 1}")
    if attempt == fold:
        die()
"""
ENTERED_AGAIN = """
for fold in range(3):
    train_in(f"fold-{fold}", phase="training" if fold == attempt else "starting")
    if attempt == fold:
        die()
    ended()
"""
SMALL_ONE_FIRST = """
train_in(f"first-{attempt}", phase="starting")
train_in("run")
if attempt < 3:
    die()
"""


@pytest.mark.parametrize("script", [FOLDS, ENTERED_AGAIN, SMALL_ONE_FIRST])
def test_scripts_with_several_runs_are_not_held_to_begin_anew(supervise, script):
    run = supervise(RUNS + script)
    code, _, err = run.end()
    assert code == 0, err
    assert SAYS not in err


def test_a_study_that_leaves_interrupted_trials_may_go_on(supervise):
    """Each attempt ends some, and begins new ones: that is said, and no error."""
    run = supervise(
        RUNS
        + """
for trial in range(2):
    train_in(f"trial-{attempt}-{trial}")
    if attempt < 4 and trial == 1:
        die()
    ended()
"""
    )
    code, _, err = run.end()
    assert code == 0, err
    assert err.count(SAYS) == 4


class Runs:
    """Attempts that are observed, in directories with events."""

    def __init__(self, home):
        self.home, self.course = home, Course()

    def start(self):
        self.since = time.time()
        self.course.start(self.since)

    def beat(self, name, phase="training", enters=True):
        path = self.home / name
        path.mkdir(exist_ok=True)
        if enters:
            Events(path).emit("started")
        return Beat("a", "h", 1, str(path), 0.0, 1, phase, 1, 0, 1)


@pytest.fixture
def runs(tmp_path):
    runs = Runs(tmp_path)
    runs.start()
    assert not runs.course.turn(runs.beat("one"))
    assert not runs.course.end(runs.beat("one", enters=False))
    runs.start()
    return runs


def test_a_start_in_a_new_directory_turns_once(runs):
    assert not runs.course.turn(runs.beat("two", "starting"))
    assert runs.course.turn(runs.beat("two", enters=False))
    assert not runs.course.turn(runs.beat("two", enters=False))
    assert runs.course.end(runs.beat("two", enters=False))


def test_a_training_too_short_to_be_seen_is_judged_at_its_end(runs):
    assert not runs.course.turn(runs.beat("two", "ended"))
    assert runs.course.turn(runs.beat("two", "ended", enters=False), over=True)
    assert not runs.course.end(runs.beat("two", "ended", enters=False))


def test_an_older_run_or_one_after_the_interrupted_one_is_not_new(runs):
    Events(runs.home / "one").emit("started")
    assert not runs.course.turn(runs.beat("two"))
    runs.start()
    assert not runs.course.turn(runs.beat("two"))


def test_an_attempt_that_gets_past_its_new_directory_does_not_count(runs):
    assert runs.course.turn(runs.beat("two"))
    assert not runs.course.end(runs.beat("three"))


def test_an_attempt_that_ends_its_new_run_does_not_count(runs):
    assert runs.course.turn(runs.beat("two"))
    assert not runs.course.end(runs.beat("two", "ended"))
    runs.start()
    assert not runs.course.turn(runs.beat("three"))


def test_an_attempt_that_died_before_it_trained_changes_nothing(runs):
    assert not runs.course.end(None)
    runs.start()
    assert runs.course.turn(runs.beat("two"))
