"""A real SLURM kills, preempts and requeues jobs of the example's batch script."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest
from slurm_cluster import Cluster, cluster, missing
from support import EXAMPLES, SUPPORT

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {missing()}"),
    pytest.mark.timeout(900),
]
one_backend = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="alike on all backends"
)
SLOW = Path(__file__).with_name("slow.py")


@pytest.fixture(scope="module")
def slurm(child_environment: dict[str, str]) -> Iterator[Cluster]:
    """In a folder with a short path, whatever the path of the tests."""
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as name:
        folder = Path(name)
        command = folder / "bin" / "resilient"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m resilient "$@"\n')
        command.chmod(0o755)
        path = f"{command.parent}{os.pathsep}{child_environment['PATH']}"
        with cluster(folder, child_environment | {"PATH": path}) as found:
            yield found


@pytest.fixture(scope="module")
def slow_digest(child_environment, tmp_path_factory) -> str:
    """Of a training that nobody interrupts, without SLURM."""
    directory = tmp_path_factory.mktemp("alone")
    done = subprocess.run(
        [sys.executable, SLOW, directory, "0"],
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return digest(done.stdout)


def digest(text: str) -> str:
    (found,) = re.findall(r"^digest (\w{64})$", text, re.MULTILINE)
    return found


def submit(slurm: Cluster, *command: object, **options: object) -> str:
    """The number of the job."""
    options = {"output": f"{slurm.folder}/%j.log", "cpus-per-task": 1} | options
    given = [f"--{name}={value}" for name, value in options.items()]
    script = EXAMPLES / "slurm.sbatch"
    return slurm("sbatch", "--parsable", *given, script, *command)


def submit_slow(
    slurm: Cluster, directory: Path, seconds: float = 0.5, **options: object
) -> str:
    """Its 120 batches take at least so many seconds each."""
    return submit(slurm, sys.executable, SLOW, directory, seconds, **options)


def resumed(text: str) -> list[str]:
    return re.findall(r"Resumed at (step \d+) ", text)


def test_a_worker_of_two_tasks_is_killed_in_mid_epoch(slurm, tmp_path):
    """Both are restarted in their tasks, and end as the tasks of a job left alone."""
    said = {}
    for name, kill in {"alone": (), "killed": ("--kill-worker=1",)}.items():
        job = submit(
            slurm,
            *("bash", EXAMPLES / "slurm_worker.sh", sys.executable),
            *(SUPPORT / "waited.py", EXAMPLES / "multi_worker.py"),
            *("--checkpoint-dir", tmp_path / name, *kill),
            ntasks=2,
        )
        slurm.wait(job, "COMPLETED")
        said[name] = slurm.log(job)
    digests = [
        dict(re.findall(r"worker (\d) of 2: digest (\w{64})", text))
        for text in said.values()
    ]
    assert digests[0]["0"] == digests[0]["1"]
    assert digests[1] == digests[0]
    assert "it was killed by SIGKILL" in said["killed"]
    assert resumed(said["killed"])


@one_backend
def test_the_time_limit_comes_and_the_job_goes_on_when_it_is_requeued(
    slurm, slow_digest, tmp_path
):
    """SLURM sends SIGUSR1, 60 to 120 seconds before it."""
    job = submit_slow(slurm, tmp_path, 1.25, time=3, signal="B:USR1@60")
    shown = slurm.wait(job, "COMPLETED", seconds=600)
    text = slurm.log(job)
    assert int(shown["Restarts"]) >= 1
    (stopped, *_) = re.findall(r"Stopped at (step \d+) .* by SIGUSR1: saved", text)
    assert f"Stopped with status 143: requeueing job {job}." in text
    assert resumed(text)[0] == stopped
    assert digest(text) == slow_digest


@one_backend
def test_a_job_of_another_partition_preempts_it(slurm, slow_digest, tmp_path):
    """SLURM sends SIGTERM, and the job is requeued within its grace time."""
    job = submit_slow(slurm, tmp_path)
    slurm.wait_for(job, "batch 0\n")
    other = slurm(
        *("sbatch", "--parsable", "--partition=high", "--exclusive"),
        *("--output=/dev/null", "--wrap=sleep 1"),
    )
    slurm.wait(other, "COMPLETED")
    text = slurm.log(job)
    (stopped,) = re.findall(r"Stopped at (step \d+) .* by SIGTERM: saved", text)
    assert f"Stopped with status 143: requeueing job {job}." in text
    assert slurm.wait(job, "COMPLETED")["Restarts"] == "1"
    text = slurm.log(job)
    assert resumed(text) == [stopped]
    assert digest(text) == slow_digest


@one_backend
def test_a_job_is_killed_and_put_back(slurm, slow_digest, tmp_path):
    """SIGKILL to all of its processes, as where a machine is lost."""
    job = submit_slow(slurm, tmp_path)
    slurm.wait_for(job, "Epoch 2/2\nbatch 0\nbatch 1\nbatch 2\n")
    for line in slurm("scontrol", "listpids", job).splitlines()[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)
    slurm.wait(job, "FAILED")
    slurm("scontrol", "requeue", job)
    slurm.wait(job, "COMPLETED")
    text = slurm.log(job)
    assert len(resumed(text)) == 1
    assert "Stopped at" not in text
    assert digest(text) == slow_digest


@one_backend
def test_a_job_that_is_cancelled_stays_so(slurm, tmp_path):
    """It saves first; its script does not requeue it."""
    job = submit_slow(slurm, tmp_path)
    slurm.wait_for(job, "batch 0\n")
    slurm("scancel", job)
    assert slurm.wait(job, "CANCELLED")["Restarts"] == "0"
