"""The recipes for clusters, as far as they can be checked without one.

The batch script runs for real, in bash; only the commands of SLURM and the supervisor
are stand-ins, which do what their manuals say and record what they were asked. The
manifest is read, and held against the rules of the Job API.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support import EXAMPLES

from resilient.preemption.requests import Preemption

pytestmark = pytest.mark.once

SBATCH = EXAMPLES / "slurm.sbatch"
BASH = shutil.which("bash") or "/bin/bash"

# They become the command that they start, as signals to them reach it.
STAND_INS = {
    "srun": 'echo "srun $*" >>"$CALLS"; exec "$@"',
    "resilient": 'echo "resilient $*" >>"$CALLS"; shift 2; exec "$@"',
    "scontrol": 'echo "scontrol $*" >>"$CALLS"; exit "${SCONTROL:-0}"',
    "squeue": 'echo "squeue $*" >>"$CALLS"; echo "$STATE"',
}

# Ends with the status that it is given, or that somebody tells it in a named pipe.
TRAINING = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print("saving", flush=True))
print("training", flush=True)
status = sys.argv[1] if len(sys.argv) > 1 else open("status").readline()
sys.exit(int(status))
"""
QUEUE = "squeue --noheader --jobs=4711 --format=%T"


class Job:
    """One run of the batch script, in a folder of its own."""

    def __init__(self, folder: Path, *command: str, **settings: str) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, text in STAND_INS.items():
            (folder / "bin" / name).write_text(f"#!{BASH}\n{text}\n")
            (folder / "bin" / name).chmod(0o755)
        (folder / "train.py").write_text(TRAINING)
        os.mkfifo(folder / "status")
        path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
        ours = {"PATH": path, "CALLS": str(folder / "calls"), "SLURM_JOB_ID": "4711"}
        self.process = subprocess.Popen(
            [BASH, SBATCH, *command],
            cwd=folder,
            env=os.environ | ours | {"STATE": "RUNNING"} | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, status: int) -> None:
        """Let training end; waits until it listens."""
        with open(self.folder / "status", "w") as pipe:
            pipe.write(f"{status}\n")

    def end(self) -> tuple[int, str, list[str]]:
        """Exit status, the rest of the output, and the commands that were called."""
        output, _ = self.process.communicate(timeout=60)
        calls = self.folder / "calls"
        called = calls.read_text().splitlines() if calls.exists() else []
        return self.process.returncode, output, called


def train(folder: Path, *arguments: object, **settings: str) -> Job:
    command = [sys.executable, "train.py", *map(str, arguments)]
    job = Job(folder, *command, **settings)
    assert job.line() == "training"
    return job


def test_bash_finds_no_error_in_the_script():
    done = subprocess.run([BASH, "-n", SBATCH], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_slurm_finds_its_options_before_the_first_command():
    """It stops looking there."""
    text = SBATCH.read_text()
    assert text.startswith("#!/bin/bash\n")
    head = re.split(r"^(?!#|$)", text, maxsplit=1, flags=re.MULTILINE)[0]
    options = re.findall(r"^#SBATCH (\S+)$", head, re.MULTILINE)
    assert len(options) == text.count("#SBATCH ")
    assert {"--signal=B:USR1@120", "--requeue", "--open-mode=append"} <= {*options}


def test_training_is_started_under_the_supervisor(tmp_path):
    job = train(tmp_path, 0, "two words")
    status, output, calls = job.end()
    assert (status, output) == (0, "")
    command = f"resilient run -- {sys.executable} train.py 0 two words"
    assert calls == [f"srun {command}", command]


@pytest.mark.parametrize("status", [1, 2, 130, 137])
def test_a_failure_is_the_jobs_failure(tmp_path, status):
    code, output, calls = train(tmp_path, status).end()
    assert (code, output, len(calls)) == (status, "", 2)


@pytest.mark.parametrize("asked", [signal.SIGUSR1, signal.SIGTERM])
def test_asked_to_stop_training_saves_and_the_job_is_requeued(tmp_path, asked):
    """SIGTERM by a preemption: the job still runs, until its grace time is over."""
    job = train(tmp_path)
    job.process.send_signal(asked)
    assert job.line() == "saving"
    job.tell(143)
    status, output, calls = job.end()
    assert status == 143
    assert output == "Stopped with status 143: requeueing job 4711.\n"
    assert calls[2:] == [QUEUE, "scontrol requeue 4711"]


def test_the_script_waits_until_training_has_saved_however_often_it_is_asked(tmp_path):
    """A signal ends bash's wait with 138, which is not the status of training."""
    job = train(tmp_path)
    for _ in range(3):
        job.process.send_signal(signal.SIGUSR1)
        assert job.line() == "saving"
    assert job.process.poll() is None
    job.tell(7)
    status, output, calls = job.end()
    assert (status, output, len(calls)) == (7, "", 2)


def test_training_that_is_done_when_it_is_asked_is_not_requeued(tmp_path):
    job = train(tmp_path)
    job.process.send_signal(signal.SIGUSR1)
    assert job.line() == "saving"
    job.tell(0)
    status, output, calls = job.end()
    assert (status, output, len(calls)) == (0, "", 2)


def test_asked_before_training_listens_the_job_is_requeued(tmp_path):
    """While Python imports, the signal kills: nothing was trained yet."""
    job = Job(tmp_path, "bash", "-c", "echo importing; read <status")
    assert job.line() == "importing"
    job.process.send_signal(signal.SIGUSR1)
    status, output, calls = job.end()
    assert status == 138
    assert output.endswith("Stopped with status 138: requeueing job 4711.\n")
    assert calls[2:] == [QUEUE, "scontrol requeue 4711"]


def test_a_stop_that_nobody_told_the_script_of_is_requeued(tmp_path):
    """A cloud's notice, say."""
    status, _, calls = train(tmp_path, 143).end()
    assert (status, calls[2:]) == (143, [QUEUE, "scontrol requeue 4711"])


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "TIMEOUT", ""])
def test_a_job_that_was_cancelled_stays_so(tmp_path, state):
    job = train(tmp_path, STATE=state)
    job.process.send_signal(signal.SIGTERM)
    assert job.line() == "saving"
    job.tell(143)
    status, output, calls = job.end()
    assert (status, calls[2:]) == (143, [QUEUE])
    assert f"not requeued, the job is {state or 'unknown'}.\n" in output


def test_where_slurm_refuses_to_requeue_the_job_ends_as_training_did(tmp_path):
    status, _, calls = train(tmp_path, 143, SCONTROL="1").end()
    assert (status, len(calls)) == (143, 4)


def test_without_a_command_the_script_tells_its_usage(tmp_path):
    status, output, calls = Job(tmp_path).end()
    assert (status, calls) == (2, [])
    assert output.startswith("usage: sbatch slurm.sbatch COMMAND")


@pytest.fixture
def documents():
    with open(EXAMPLES / "kubernetes.yaml") as file:
        return {one["kind"]: one for one in yaml.safe_load_all(file)}


@pytest.fixture
def pod(documents):
    return documents["Job"]["spec"]["template"]["spec"]


def test_the_manifest_is_a_job_and_a_claim(documents):
    kinds = {kind: one["apiVersion"] for kind, one in documents.items()}
    assert kinds == {"PersistentVolumeClaim": "v1", "Job": "batch/v1"}
    for one in documents.values():
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", one["metadata"]["name"])


def test_preemptions_do_not_count_as_failures(documents, pod):
    """The API's rules: one requirement a rule, no status 0, a container that exists."""
    spec = documents["Job"]["spec"]
    disrupted, stopped = spec["podFailurePolicy"]["rules"]
    condition = {"type": "DisruptionTarget", "status": "True"}
    assert disrupted == {"action": "Ignore", "onPodConditions": [condition]}
    name = pod["containers"][0]["name"]
    codes = {"containerName": name, "operator": "In", "values": [143]}
    assert stopped == {"action": "Ignore", "onExitCodes": codes}
    assert spec["backoffLimit"] >= 1


def test_a_failure_policy_goes_with_pods_that_do_not_restart(documents, pod):
    """The API refuses any other restartPolicy, and any other podReplacementPolicy."""
    assert pod["restartPolicy"] == "Never"
    assert documents["Job"]["spec"]["podReplacementPolicy"] == "Failed"


def test_one_pod_runs_at_a_time(documents):
    spec = documents["Job"]["spec"]
    assert (spec["completions"], spec["parallelism"]) == (1, 1)


def test_the_supervisor_is_process_1(pod):
    """A shell in its place would not pass SIGTERM on."""
    (container,) = pod["containers"]
    assert container["command"][:3] == ["resilient", "run", "--"]
    assert "args" not in container


def test_there_is_more_time_than_the_grace_period(pod):
    assert pod["terminationGracePeriodSeconds"] >= 60 > Preemption().grace_period


def test_the_checkpoints_are_on_the_claim(documents, pod):
    (volume,), (container,) = pod["volumes"], pod["containers"]
    (mount,) = container["volumeMounts"]
    claim = documents["PersistentVolumeClaim"]
    assert mount["name"] == volume["name"]
    claimed = volume["persistentVolumeClaim"]["claimName"]
    assert claimed == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert claim["spec"]["resources"]["requests"]["storage"]
