"""`resilient run` over a loop by hand: killed, stopped, failing and asked to stop."""

import os
import subprocess
import sys

import pytest

from resilient.telemetry.events import read_events

SCRIPT = """
import os, random, signal, sys
from pathlib import Path
import keras
import resilient
from support.waited import wait_for_each_save

wait_for_each_save()  # so that there is one to go on from
home = Path(sys.argv[1])
total, numbers = keras.Variable(0.0, dtype="float64"), random.Random(7)
run = resilient.Run(home / "runs", save_freq=2, total=total, numbers=numbers)
for epoch, step, _ in run.loop(keras.ops.arange(40), epochs=2, batch_size=2):
    total.assign(0.9 * total + numbers.random())
    run.log(total=total)
    fault = home / str(step)
    if fault.exists():
        kind = fault.read_text()
        fault.unlink()
        if kind == "raise":
            raise ValueError("something odd")
        os.kill(os.getpid(), getattr(signal, kind))
(home / "end").write_text(repr((run.history["total"], float(total))))
"""
# Mostly starts of processes: in the short session of one backend only, and that of
# fit (test_chaos.py) in another's.
pytestmark = pytest.mark.spread(over=["jax"])

FAULTS = {5: "SIGKILL", 13: "SIGSTOP", 17: "raise", 24: "SIGTERM"}


def trained(home, environment, faults):
    home.mkdir()
    for step, kind in faults.items():
        (home / str(step)).write_text(kind)
    command = [sys.executable, "-m", "resilient", "run", "--backoff", "0.01"]
    # Seconds; a start and a save take less than that, however busy the machine is.
    command += ["--hang-timeout", "10", "--startup-timeout", "60"]
    command += ["--dir", os.fspath(home / "runs")]
    command += ["--", sys.executable, "-c", SCRIPT, os.fspath(home)]
    known = {k: v for k, v in environment.items() if k != "RESILIENT_HEARTBEAT"}
    done = subprocess.run(command, env=known, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (home / "end").read_text()


def test_a_loop_ends_as_if_nothing_had_happened(tmp_path, child_environment):
    alone = trained(tmp_path / "alone", child_environment, {})
    assert trained(tmp_path / "harmed", child_environment, FAULTS) == alone
    events = list(read_events(tmp_path / "harmed" / "runs"))
    exits = [event["kind"] for event in events if event["event"] == "exited"]
    assert len(exits) == len(FAULTS) + 1
    assert exits[-1] == "finished"
    assert sum(event["event"] == "restored" for event in events) == len(FAULTS)


ELSEWHERE = """
import os, signal, sys, time
from pathlib import Path
import keras
import resilient

total, number = keras.Variable(0.0), len(list(Path(sys.argv[1]).glob("run-*")))
run = resilient.Run(Path(sys.argv[1]) / f"run-{number}", save_freq=2, total=total)
for epoch, step, _ in run.loop(keras.ops.arange(8), epochs=1, batch_size=2):
    time.sleep(1)  # the heartbeat is written every second
    if number == 0 and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_in_another_directory_in_each_start_is_said(tmp_path, child_environment):
    command = [sys.executable, "-m", "resilient", "run", "--backoff", "0", "--"]
    command += [sys.executable, "-c", ELSEWHERE, os.fspath(tmp_path)]
    known = {k: v for k, v in child_environment.items() if k != "RESILIENT_HEARTBEAT"}
    done = subprocess.run(command, env=known, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = (
        f"{tmp_path / 'run-1'}; the one before was interrupted in {tmp_path / 'run-0'}"
    )
    assert said in done.stderr
