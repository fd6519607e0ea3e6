"""Several local processes: what they are told, and that they live and die together."""

import json
import os
import signal

import pytest

from resilient.supervise import environment
from resilient.supervise.options import Options
from resilient.supervise.processes import Process

pytestmark = pytest.mark.once

TOLD = """
import json, os, sys
names = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TF_CONFIG "
    "JAX_COORDINATOR_ADDRESS "
    "KERAS_DISTRIBUTION_JOB_ADDRESSES KERAS_DISTRIBUTION_NUM_PROCESSES "
    "KERAS_DISTRIBUTION_PROCESS_ID"
).split()
told = {name: os.environ[name] for name in names}
(directory / f"told-{rank}-{attempt}.json").write_text(json.dumps(told))
"""


def told(run, rank, attempt):
    return json.loads((run.directory / f"told-{rank}-{attempt}.json").read_text())


def ports(variables):
    """All ports of a gang."""
    workers = json.loads(variables["TF_CONFIG"])["cluster"]["worker"]
    jax = variables["JAX_COORDINATOR_ADDRESS"]
    assert variables["KERAS_DISTRIBUTION_JOB_ADDRESSES"] == jax
    return [
        variables["MASTER_PORT"],
        *(address.removeprefix("127.0.0.1:") for address in (jax, *workers)),
    ]


def test_two_are_restarted_together_when_one_dies(supervise):
    run = supervise(
        TOLD
        + """
ready()
while not (directory / f"ready-{1 - int(rank)}-{attempt}").exists():
    time.sleep(0.01)
train(5)
if attempt == 0:
    if rank == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    forever()
os.write(1, b"done\\n")
""",
        *("--nproc", 2),
    )
    code, out, err = run.end()
    assert code == 0, err
    assert out == "done\ndone\n"
    assert "Killed or lost: process 1: it was killed by SIGKILL." in err
    assert len(run.attempts(0)) == len(run.attempts(1)) == 2
    first, second = run.events("exited")
    assert (first["rank"], first["kind"], first["returncode"]) == (
        1,
        "killed or lost",
        -9,
    )
    assert second["kind"] == "finished"
    gangs = [[told(run, rank, attempt) for rank in (0, 1)] for attempt in (0, 1)]
    for gang in gangs:
        assert [each["RANK"] for each in gang] == ["0", "1"]
        assert [each["LOCAL_RANK"] for each in gang] == ["0", "1"]
        assert [each["KERAS_DISTRIBUTION_PROCESS_ID"] for each in gang] == ["0", "1"]
        tasks = [json.loads(each["TF_CONFIG"])["task"] for each in gang]
        assert tasks == [{"type": "worker", "index": index} for index in (0, 1)]
        assert {each["WORLD_SIZE"] for each in gang} == {"2"}
        assert ports(gang[0]) == ports(gang[1])
        assert len(set(ports(gang[0]))) == 4
    assert ports(gangs[0][0]) != ports(gangs[1][0])


def test_the_others_are_asked_to_stop_before_they_are_killed(supervise):
    run = supervise(
        """
        def stop(signum, frame):
            (directory / f"asked-{rank}-{attempt}").touch()
            if rank == "0":
                sys.exit(143)

        signal.signal(signal.SIGTERM, stop)
        ready()
        while attempt == 0:
            if rank == "2" and len(list(directory.glob("ready-*"))) == 3:
                raise ValueError("bad")
            time.sleep(0.01)
        """,
        *("--nproc", 3, "--gang-grace", 3),
    )
    code, _, err = run.end()
    assert code == 0, err
    assert sorted(path.name for path in run.directory.glob("asked-*")) == [
        "asked-0-0",
        "asked-1-0",
    ]
    assert "Error: process 2: ValueError: bad" in err


def test_one_that_is_done_waits_for_the_others(supervise):
    run = supervise(
        """
        if rank == "0":
            sys.exit(0)
        ready()
        while not (directory / "go").exists():
            time.sleep(0.01)
        """,
        *("--nproc", 2),
    )
    run.wait_for("ready-1-0")
    (run.directory / "go").touch()
    assert run.end()[0] == 0
    assert len(run.attempts(1)) == 1


def test_a_signal_reaches_all_and_each_has_its_time(supervise):
    run = supervise(
        """
        def stop(signum, frame):
            (directory / f"asked-{rank}").touch()
            if rank == "1":  # saves until the other has long been gone
                while not (directory / "go").exists():
                    time.sleep(0.01)
                (directory / "saved").touch()
            sys.exit(143)

        signal.signal(signal.SIGTERM, stop)
        ready()
        forever()
        """,
        *("--nproc", 2, "--gang-grace", 0),
    )
    for rank in (0, 1):
        run.wait_for(f"ready-{rank}-0")
    run.send(signal.SIGTERM)
    for rank in (0, 1):
        run.wait_for(f"asked-{rank}")
    (run.directory / "go").touch()
    assert run.end()[0] == 143
    assert (run.directory / "saved").exists()


def test_a_hang_of_one_prints_the_stacks_of_all(supervise):
    run = supervise(
        """
        if attempt == 1:
            sys.exit(0)
        train(1)
        if rank == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        for step in range(1_000_000):
            train(step)
            time.sleep(0.01)
        """,
        *("--nproc", 2, "--hang-timeout", 2),
    )
    code, _, err = run.end()
    assert code == 0, err
    assert err.count("Fatal Python error: Aborted") == 2
    (hung, _) = run.events("exited")
    assert (hung["kind"], hung["rank"]) == ("hung", 1)


def test_one_process_is_told_nothing_of_a_gang(tmp_path):
    told = environment.of_process({"HOME": "/root"}, tmp_path / "sign", 0, 1, [])
    assert told == {
        "HOME": "/root",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "RESILIENT_HEARTBEAT": str(tmp_path / "sign"),
    }


def test_a_buffer_that_the_user_wants_stays(tmp_path):
    base = {"PYTHONUNBUFFERED": ""}
    told = environment.of_process(base, tmp_path, 0, 1, [])
    assert told["PYTHONUNBUFFERED"] == ""


def test_ports_are_different():
    assert len(set(environment.free_ports(10))) == 10


@pytest.mark.parametrize("cause", ["0", "1"])
def test_the_failure_of_the_one_that_was_lost_is_told(supervise, cause):
    """Though another, that missed it, was the first to end; three times it is a bug."""
    run = supervise(
        f"""
        own, lost = Events(directory, process=int(rank)), "x.PeerLostError"
        own.attempt = events.attempt
        train(5)
        if rank == "{cause}":
            own.emit("failed", step=5, error="E", message="boom", signature="s")
            ready()
            forever()
        while not (directory / f"ready-{cause}-{{attempt}}").exists():
            time.sleep(0.01)
        own.emit("failed", step=5, error=lost, message="", signature=str(attempt))
        sys.exit(1)
        """,
        *("--nproc", 2),
    )
    code, _, err = run.end()
    assert code == 1
    assert [event["rank"] for event in run.events("exited")] == [int(cause)] * 3
    told = f"Error: process {cause}: E at step 5: boom. Restart"
    assert err.count(told) == 2


@pytest.mark.parametrize("pid", [None, 1, 0, 1 << 40])
def test_only_processes_of_the_session_are_signalled(tmp_path, pid):
    """Whatever process the sign of life names."""
    sign = tmp_path / "sign"
    pid = os.getpid() if pid is None else pid
    beat = {"attempt": "a", "host": "h", "pid": pid, "directory": "d", "time": 1}
    beat |= {"count": 1, "phase": "training", "step": 1, "epoch": 0, "batch": 1}
    sign.write_text(json.dumps(beat))
    process = Process(Options(["sleep", "60"]), os.environ, sign, 0)
    try:
        assert process.training_pid() == process.pid
    finally:
        process.kill_group()
        process.wait()
        process.stderr.close()
