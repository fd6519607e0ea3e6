"""Signals to `resilient run`: passed on once, and no restart after them."""

import signal

import pytest
from support.supervised import PRELUDE

pytestmark = pytest.mark.once

STOPS = """
def stop(signum, frame):
    with open(directory / "signals", "a") as file:
        file.write(f"{signum} ")
    if SAYS:
        name = signal.Signals(signum).name
        events.emit("preempted", step=3, reason=name, saved=True)
    sys.exit(STATUS)

signal.signal(SIGNAL, stop)
train(3)
ready()
forever()
"""


def stops(signum, status, *, says=True):
    """A script that does as it is told; ``says``: which ``fit`` writes down."""
    return f"SIGNAL, STATUS, SAYS = {int(signum)}, {status}, {says}\n{STOPS}"


@pytest.mark.parametrize(
    ("signum", "status"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        (signal.SIGUSR1, 143),
        (signal.SIGHUP, 143),
    ],
)
def test_a_signal_is_passed_on_once_and_ends_it_all(supervise, signum, status):
    run = supervise(stops(signum, status))
    run.wait_for("ready-0-0")
    run.send(signum)
    code, _, err = run.end()
    assert code == status
    assert (run.directory / "signals").read_text() == f"{int(signum)} "
    assert len(run.attempts()) == 1
    assert f"{signal.Signals(signum).name} passed on" in err


@pytest.mark.parametrize(("says", "status"), [(True, 143), (False, 0)])
def test_a_script_that_ends_well_after_it_was_stopped(supervise, says, status):
    """Whoever requeues has to know that training was stopped short, if it was."""
    run = supervise(stops(signal.SIGTERM, 0, says=says))
    run.wait_for("ready-0-0")
    run.send(signal.SIGTERM)
    code, _, err = run.end()
    assert code == status
    assert len(run.attempts()) == 1
    assert "SIGTERM passed on" in err


def test_a_second_signal_is_passed_on_too(supervise):
    run = supervise("""
        count = 0
        def stop(signum, frame):
            global count
            count += 1
            (directory / f"signal-{count}").touch()
            if count == 2:
                sys.exit(143)
        signal.signal(signal.SIGTERM, stop)
        ready()
        forever()
    """)
    run.wait_for("ready-0-0")
    run.send(signal.SIGTERM)
    run.wait_for("signal-1")
    run.send(signal.SIGTERM)
    assert run.end()[0] == 143


def test_the_third_ctrl_c_kills(supervise):
    run = supervise("""
        count = 0
        def stay(signum, frame):
            global count
            count += 1
            (directory / f"signal-{count}").touch()
        signal.signal(signal.SIGINT, stay)
        ready()
        forever()
    """)
    run.wait_for("ready-0-0")
    for number in (1, 2):
        run.send(signal.SIGINT)
        run.wait_for(f"signal-{number}")
    run.send(signal.SIGINT)
    assert run.end()[0] == 128 + signal.SIGKILL


def test_a_failure_after_a_signal_is_not_restarted(supervise):
    run = supervise("""
        def fail(signum, frame):
            raise ValueError("while saving")
        signal.signal(signal.SIGTERM, fail)
        ready()
        forever()
    """)
    run.wait_for("ready-0-0")
    run.send(signal.SIGTERM)
    code, _, err = run.end()
    assert code == 1
    assert "No restart. Error: ValueError: while saving" in err


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_signal_ends_the_wait_for_a_restart(supervise, signum, status):
    run = supervise(
        """
        train(1)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        *("--backoff", 1e9),
    )
    while b"Restart 1 in" not in run.process.stderr.readline():
        assert run.process.poll() is None
    run.send(signum)
    assert run.end()[0] == status
    assert len(run.attempts()) == 1


def test_a_signal_goes_to_the_process_that_trains(supervise, tmp_path):
    """A script may be started by another one, such as a shell script."""
    inner = tmp_path / "inner.py"
    inner.write_text(PRELUDE + stops(signal.SIGTERM, 143))
    run = supervise(
        f"""
        import subprocess, sys
        status = subprocess.call([sys.executable, {str(inner)!r}, sys.argv[1]])
        open(sys.argv[1] + "/outer", "w").close()
        sys.exit(status)
        """,
        prelude="",
    )
    run.wait_for("ready-0-0")
    run.send(signal.SIGTERM)
    assert run.end()[0] == 143
    assert (run.directory / "outer").exists()
