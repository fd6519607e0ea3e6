"""Hangs of real processes: found, their stacks printed, killed and restarted."""

import signal

import pytest

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
    hung, finished = run.events("exited")
    assert "in phase 'training' at step 1 (the limit is 0.5 s)" in hung["why"]
    assert [hung["kind"], finished["kind"]] == ["hung", "finished"]


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


def test_a_process_that_does_not_die_of_it_is_killed(supervise):
    run = supervise(
        """
        if attempt == 1:
            sys.exit(0)
        import faulthandler
        faulthandler.disable()
        signal.signal(signal.SIGABRT, signal.SIG_IGN)
        train(1)
        forever()
        """,
        *("--hang-timeout", 0.5),
    )
    code, _, err = run.end()
    assert code == 0, err
    assert run.events("exited")[0]["returncode"] == -signal.SIGKILL
