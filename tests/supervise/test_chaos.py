"""`resilient run` over a training that is harmed at random: it ends as if it were not.

Killed, stopped (so that it hangs), asked to stop, made to raise, starved of disk, with
a sample whose loss is NaN in each epoch. What it leaves equals, byte for byte, what an
attempt leaves that nothing happened to but the NaN.
"""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from support import SUPPORT
from support.gang import run_alone

from resilient.telemetry.events import read_events
from resilient.telemetry.goodput import goodput

SCRIPT = SUPPORT / "chaos_script.py"
STEPS = 120  # batches of the run
KINDS = ("kill", "stop", "raise", "term", "disk")


@pytest.fixture
def environment(child_environment):
    known = dict(child_environment)
    known.pop("RESILIENT_HEARTBEAT", None)
    return known


@pytest.fixture
def undisturbed(tmp_path):
    home = tmp_path / "undisturbed"
    ended, told = run_alone(SCRIPT, home)
    assert ended == 0, told[-3000:]
    return home


def faults(count, seed):
    """At random steps, after at most 50 ms each: all kinds, and more of them."""
    draw = random.Random(seed)
    kinds = [*KINDS, *draw.choices(KINDS, k=count - len(KINDS))]
    draw.shuffle(kinds)
    steps = sorted(draw.sample(range(STEPS), count))
    return [
        [kind, step, draw.uniform(0, 0.05)]
        for kind, step in zip(kinds, steps, strict=True)
    ]


def supervise(home, planned, environment):
    command = [sys.executable, "-m", "resilient", "run", "--backoff", "0.01"]
    # Seconds: a start, validation and a save take less than that, however busy we are.
    command += [
        "--hang-timeout",
        "10",
        "--startup-timeout",
        "60",
        "--dir",
        os.fspath(home / "checkpoints"),
    ]
    command += ["--", sys.executable, os.fspath(SCRIPT), os.fspath(home)]
    home.mkdir()
    return subprocess.run(
        [*command, json.dumps(planned)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def assert_same_end(expected, actual):
    old, new = np.load(expected / "end.npz"), np.load(actual / "end.npz")
    assert sorted(old) == sorted(new)
    for name in old:
        np.testing.assert_array_equal(old[name], new[name], err_msg=name)
    for name in ("history.json", "log.csv", "checkpoints/rollbacks.json"):
        assert (expected / name).read_text() == (actual / name).read_text(), name


def assert_nothing_lost(directory):
    """Every attempt went on from the newest checkpoint that was committed.

    Unless it was rolled back, which no event says where the disk was full.
    """
    skips = json.loads((directory / "rollbacks.json").read_text())
    committed, resumed = set(), 0
    for event in read_events(directory):
        if event["event"] == "saved":
            committed.add(event["step"])
        elif event["event"] == "restored":
            passed_over = {step for step in committed if step > event["step"]}
            for step in passed_over:
                assert any(skip["start"] < step <= skip["stop"] for skip in skips)
            committed -= passed_over
            resumed += 1
    return resumed


def survive(home, planned, environment, undisturbed):
    """Let it go through these faults; how often it was restarted."""
    done = supervise(home, planned, environment)
    assert done.returncode == 0, done.stderr[-6000:]
    struck = sorted(path.name for path in home.glob("fault-*"))
    assert len(struck) == len(planned)
    assert_same_end(undisturbed, home)
    assert assert_nothing_lost(home / "checkpoints") >= 3
    exits = [e for e in read_events(home / "checkpoints") if e["event"] == "exited"]
    assert exits[-1]["kind"] == "finished"
    total = goodput(home / "checkpoints")
    assert total.share > 0
    return [event["kind"] for event in exits[:-1]]


def report(capsys, backend, planned, kinds):
    with capsys.disabled():
        print(
            f"\n{backend}: {len(planned)} faults injected and survived "
            f"({', '.join(kind for kind, _, _ in planned)}), 3 rollbacks; "
            f"{len(kinds)} restarts ({', '.join(kinds)})"
        )


# Mostly starts of processes that import Keras, one for each fault: in the short session
# of one backend only.
@pytest.mark.long
@pytest.mark.parametrize("count", [len(KINDS)])
def test_chaos(count, tmp_path, environment, undisturbed, backend, capsys):
    planned = faults(count, seed=os.getpid())
    kinds = survive(tmp_path / "run", planned, environment, undisturbed)
    assert len(kinds) >= 2
    report(capsys, backend, planned, kinds)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(10))
def test_more_chaos(seed, tmp_path, environment, undisturbed, backend, capsys):
    planned = faults(25, seed=seed)
    kinds = survive(tmp_path / "run", planned, environment, undisturbed)
    assert len(kinds) >= 5
    report(capsys, backend, planned, kinds)
