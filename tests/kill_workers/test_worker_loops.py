"""Loops by hand in two processes: one is killed, both are started again."""

import re
import signal

import keras
import pytest
from gang import run
from own_data import NO_PARTS

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "tensorflow",
    reason="there it is the example multi_worker_loop.py",
)


def digests(ended):
    found = [re.search(r"^digest (\w+)$", t, re.MULTILINE) for t in ended.outputs]
    return [match and match[1] for match in found]


@pytest.mark.skipif(not NO_PARTS, reason="Keras tells, or has no part in it")
def test_processes_whose_parts_keras_does_not_tell_are_refused(tmp_path):
    import loop_worker

    ended = run(loop_worker.__file__, tmp_path, "0@-1")
    assert ended.statuses == [1, 1]
    for output in ended.outputs:
        assert "NotSupportedError: Several JAX processes need a newer Keras" in output


@pytest.mark.skipif(NO_PARTS, reason="refused, see above")
@pytest.mark.timeout(400)
def test_killed_it_ends_as_a_run_left_alone(tmp_path):
    """In each process: arrays in shards, optimizers, random numbers, positions."""
    import loop_worker

    script = loop_worker.__file__
    alone = run(script, tmp_path / "alone", "0@-1").check()
    assert None not in digests(alone)
    killed = run(script, tmp_path / "killed", "1@5")
    assert killed.statuses[1] == -signal.SIGKILL
    resumed = run(script, tmp_path / "killed", "0@-1").check()
    assert "Resumed at step 4" in resumed.outputs[0]
    assert digests(resumed) == digests(alone)
