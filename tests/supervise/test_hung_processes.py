"""Hangs of real processes: found, their stacks printed, killed and restarted."""

import signal
import sys
import time

import pytest

from resilient.supervise.process_group import ProcessGroup

pytestmark = pytest.mark.once


def test_a_stopped_process_is_a_hang(supervise):
    run = supervise(
        """
        if attempt == 1:
            sys.exit(0)
        train(1)
        os.kill(os.getpid(), signal.SIGSTOP)
        """,
        *("--hang-timeout", 0.5),
    )
    code, _, err = run.end()
    assert code == 0
    assert "Hung: no heartbeat for" in err
    assert "Fatal Python error: Aborted" in err
    (hung,) = run.events("hung")
    assert (hung["phase"], hung["step"], hung["limit"]) == ("training", 1, 0.5)
    assert hung["process"] == run.attempts()[0]
    assert [event["kind"] for event in run.events("exited")] == ["hung", "finished"]


def test_the_stacks_of_an_endless_loop_are_printed(supervise):
    run = supervise(
        """
        def endless():
            while True:
                pass

        if attempt == 1:
            sys.exit(0)
        train(1)
        endless()
        """,
        *("--hang-timeout", 0.5),
    )
    code, _, err = run.end()
    assert code == 0
    assert "in endless" in err
    assert err.index("Its stack traces follow") < err.index("in endless")


def test_output_that_nobody_reads_is_no_hang(supervise):
    """The training stands still in a `print`, as after Ctrl-S in a terminal."""
    run = supervise(
        """
        train(1)
        ready()
        sys.stdout.write("x" * 1_000_000)
        train(2)
        """,
        *("--hang-timeout", 1.5),
    )
    run.wait_for("ready-0-0")
    time.sleep(4)
    code, out, _ = run.end()
    assert (code, len(out)) == (0, 1_000_000)
    assert run.events("hung") == []


def test_a_start_that_hangs_where_the_user_gave_a_limit(supervise):
    run = supervise(
        """
        import sys, time
        time.sleep(999)
        """,
        *("--startup-timeout", 0.5, "--max-restarts", 0),
        prelude="",
    )
    code, _, err = run.end()
    assert code == 128 + signal.SIGABRT
    assert "s since it was started (the limit is 0.5 s)" in err
    assert "Gave up: --max-restarts 0 allows no more restarts." in err


def test_a_process_that_does_not_die_of_it_is_killed():
    ignores = "import signal, time; signal.signal(signal.SIGABRT, signal.SIG_IGN)"
    gang = ProcessGroup(
        [sys.executable, "-c", f"{ignores}; print(1); time.sleep(999)"], 1, {}
    )
    (member,) = gang.members
    with member.stdout, member.stderr:
        assert member.stdout.readline() == b"1\n"
        waits = []
        gang.abort(lambda seconds, over: waits.append((seconds, over())))
        gang.clean_up()
        gang.close()
    assert waits == [(10.0, False)]
    assert member.returncode == -signal.SIGKILL
