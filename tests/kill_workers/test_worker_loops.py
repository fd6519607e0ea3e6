"""Loops by hand in two processes: one is killed, both are started again."""

import re
import signal
from pathlib import Path

import pytest
from own_data import BACKEND, NO_PARTS
from support import BACKENDS, EXAMPLES, SUPPORT
from support.gang import Ended, run

EXAMPLE = EXAMPLES / "multi_worker_loop.py"
WAITED = SUPPORT / "waited.py"  # so that a step says what is committed
LOOP_WORKER = Path(__file__).with_name("loop_worker.py")


def attempt(directory: Path, *, killed: bool = False) -> Ended:
    """Two processes of the example, on TensorFlow; elsewhere of ``loop_worker``."""
    if BACKEND == "tensorflow":
        kill = ("--kill-worker=1", "--at-step=20") if killed else ()
        command = (WAITED, EXAMPLE, "--checkpoint-dir", directory, *kill)
    else:
        command = (LOOP_WORKER, directory, "1@5" if killed else "0@-1")
    return run(*command, ends_at_once=killed)


def digests(ended: Ended) -> list[str | None]:
    found = [re.search(r"\bdigest (\w+)$", t, re.MULTILINE) for t in ended.outputs]
    return [match and match[1] for match in found]


@pytest.mark.skipif(not NO_PARTS, reason="Keras tells, or has no part in it")
def test_processes_whose_parts_keras_does_not_tell_are_refused(tmp_path):
    ended = attempt(tmp_path).check(1, 1)
    for output in ended.outputs:
        assert "NotSupportedError: Several JAX processes need a newer Keras" in output


# `nox -s exact` kills loops, and two workers, on each backend.
@pytest.mark.spread(over=BACKENDS)
@pytest.mark.skipif(NO_PARTS, reason="refused, see above")
@pytest.mark.timeout(400)
def test_killed_it_ends_as_a_run_left_alone(tmp_path):
    """In each process: arrays in shards, optimizers, random numbers, positions."""
    alone = attempt(tmp_path / "alone").check()
    assert None not in digests(alone)
    killed = attempt(tmp_path / "killed", killed=True)
    assert killed.statuses[1] == -signal.SIGKILL
    resumed = attempt(tmp_path / "killed").check()
    step = 16 if BACKEND == "tensorflow" else 4
    assert f"Resumed at step {step}" in resumed.outputs[0]
    assert digests(resumed) == digests(alone)
