"""`resilient run` with real processes: what is restarted and what is not."""

import os
import shutil
import signal
import sys

import pytest
from support.checkpoint_samples import filled
from support.supervised import gone, kill

from resilient.telemetry.events import KILLED, Events

pytestmark = pytest.mark.once


def test_a_killed_process_is_restarted(supervise):
    run = supervise("""
        for step in range(3):
            train(10 * attempt + step)
        if attempt < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        print("done")
    """)
    code, out, err = run.end()
    assert (code, out) == (0, "done\n")
    assert err.count("Killed or lost: it was killed by SIGKILL. Restart") == 2
    exits = run.events()
    assert [event["event"] for event in exits] == ["exited"] * 3
    assert [event["kind"] for event in exits] == [KILLED, KILLED, "finished"]
    assert [event["step"] for event in exits] == [2, 12, 22]
    assert len(run.attempts()) == 3


def test_what_was_started_once_is_tried_again(supervise, tmp_path):
    """Here without a directory for temporary files, which might come back."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    run = supervise(
        """
        import shutil
        train(1)
        shutil.rmtree(os.environ["TMPDIR"])
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        *("--max-restarts", 2),
        TMPDIR=str(temporary),
    )
    code, _, err = run.end()
    assert code == 127
    assert len(run.attempts()) == 1
    assert "Gave up: --max-restarts 2 allows no more restarts." in err
    assert "Not started: the command cannot be started" in err


def test_a_bug_is_not_restarted_for_ever(supervise):
    run = supervise("""
        train(7)
        raise ValueError(f"bad {time.time()}")
    """)
    code, _, err = run.end()
    assert code == 1
    assert len(run.attempts()) == 3
    assert err.count("Traceback") == 3
    assert "Gave up: error, 3 times in a row" in err
    assert "Received: ValueError: bad" in err
    (gave_up,) = run.events("gave up")
    assert (gave_up["kind"], gave_up["status"]) == ("error", 1)


def test_a_bug_in_fit_is_known_by_its_events(supervise):
    run = supervise(
        """
        train(7)
        events.emit(
            "failed", step=7, error="builtins.KeyError", message="x",
            where=["train.py:3 loss"], signature="abc",
        )
        sys.exit(1)
        """,
        *("--same-failure", 2),
    )
    code, _, err = run.end()
    assert code == 1
    assert "Received: KeyError at step 7: x (train.py:3 loss)" in err
    assert [event["signature"] for event in run.events("exited")] == ["abc", "abc"]


@pytest.mark.parametrize("damage", ["rmtree", "replace by a file", "unmount"])
def test_no_restart_begins_anew_where_checkpoints_were(supervise, tmp_path, damage):
    """The first attempt moves what is damaged away: the second one knows of it."""
    store = filled(tmp_path / "run", 10)
    Events(store.directory).emit("saved", step=10)
    path = store.directory / "step-00000010"
    shutil.rmtree(path)
    if damage == "replace by a file":
        path.touch()
    elif damage == "unmount":
        path.symlink_to("not-mounted")
    run = supervise("""
        from resilient.saving.choose import find
        from resilient.storage.store import Store
        find(Store(directory), "auto", lambda checkpoint: None, events)
        (directory / "trained").touch()
    """)
    code, _, err = run.end()
    assert code == 1
    assert len(run.attempts()) > 1
    assert "CheckpointError: " in err or "CheckpointNotFoundError: " in err
    assert not (store.directory / "trained").exists()


def test_a_script_that_knows_nothing_of_us(supervise, tmp_path):
    run = supervise(
        """
        import os, sys
        count = open(sys.argv[1], "a")
        count.write("x")
        count.close()
        sys.exit(0 if os.path.getsize(sys.argv[1]) == 3 else 5)
        """,
        prelude="",
    )
    code, _, err = run.end()
    assert code == 0
    assert err.count("it ended with exit status 5 and no traceback") == 2
    assert "Attempts: 3 (2 error, 1 finished)" in err


def test_a_limit_on_restarts(supervise):
    run = supervise(
        "os.kill(os.getpid(), signal.SIGSEGV)",
        *("--max-restarts", 1),
    )
    code, _, err = run.end()
    assert code == 128 + signal.SIGSEGV
    assert "--max-restarts 1" in err
    assert "Status: 139." in err


def test_restarts_without_a_newer_checkpoint(supervise):
    run = supervise(
        """
        train(100 + attempt)
        step = 100 if attempt < 2 else 200
        (directory / f"step-{step:08}").mkdir(exist_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        *("--no-progress", 2),
    )
    code, _, err = run.end()
    assert code == 128 + signal.SIGKILL
    assert len(run.attempts()) == 5  # 100, 100, 200, then two for nothing
    assert "2 restarts in a row brought no newer checkpoint" in err


def test_an_attempt_without_a_heartbeat_is_recorded_where_the_run_is_named(supervise):
    run = supervise("sys.exit(1)", "--max-restarts", 0, "--dir", "{directory}")
    assert run.end()[0] == 1
    assert [event["event"] for event in run.events()] == ["exited", "gave up"]


@pytest.mark.parametrize(("last", "said"), [("ended", False), ("failed", True)])
def test_a_script_that_ends_well_before_its_run_does_is_said(supervise, last, said):
    run = supervise(f"train(3)\nevents.emit({last!r}, step=3)\nos._exit(0)")
    code, _, err = run.end()
    assert code == 0
    assert (f"The run in {run.directory} did not end." in err) is said


def test_a_preemption_that_did_not_come_through_us_is_restarted(supervise):
    run = supervise("""
        train(3)
        if attempt == 0:
            events.emit("preempted", step=3, reason="SIGTERM", saved=True)
            sys.exit(143)
    """)
    code, _, err = run.end()
    assert code == 0
    assert "Preempted: it was asked to stop (SIGTERM). Restart 1" in err


@pytest.mark.parametrize("reason", ["stop file", "the spot instance goes at 12:00"])
def test_a_stop_that_is_meant_is_not_restarted(supervise, reason):
    run = supervise(f"""
        train(3)
        events.emit("preempted", step=3, reason={reason!r}, saved=True)
        sys.exit(143)
    """)
    code, _, err = run.end()
    assert code == 143
    assert len(run.attempts()) == 1
    assert "No restart." in err


def test_what_a_process_leaves_behind_is_killed(supervise):
    run = supervise("""
        worker = subprocess.Popen(["sleep", "999"])
        (directory / f"worker-{attempt}").write_text(str(worker.pid))
        train(1)
        if attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    code, _, err = run.end()
    assert code == 0
    assert err.count("Killed processes that the training left behind.") == 2
    for attempt in (0, 1):
        assert gone(int((run.directory / f"worker-{attempt}").read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not show it")
def test_daemons_in_sessions_of_their_own_are_killed(supervise):
    """Unless they do not have the variable that says whose they are."""
    run = supervise("""
        def start(name, **own):
            daemon = subprocess.Popen(["sleep", "999"], start_new_session=True, **own)
            (directory / f"{name}-{attempt}").write_text(str(daemon.pid))

        start("daemon")
        if attempt == 0:
            start("free", env={}, stdout=subprocess.DEVNULL)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                (directory / f"forked-{attempt}").write_text(str(os.getpid()))
                os.closerange(0, 3)
                forever()
            os._exit(0)
        os.wait()
        train(1)
        while not (directory / f"forked-{attempt}").exists():
            time.sleep(0.01)
        if attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    code, _, err = run.end()
    names = ("daemon-0", "daemon-1", "forked-0", "forked-1", "free-0")
    pids = {name: int((run.directory / name).read_text()) for name in names}
    try:
        os.kill(pids["free-0"], 0)
        assert code == 0
        assert err.count("Killed processes that the training left behind.") == 2
        assert all(gone(pids[name]) for name in names[:-1])
    finally:
        for pid in pids.values():
            kill(pid)
