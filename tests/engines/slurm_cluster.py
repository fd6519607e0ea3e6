"""A SLURM cluster of this machine alone, with its daemons and files in one folder.

It is the real thing, as a distribution packages it: munged, slurmctld and slurmd. Its
partition ``high`` takes the machine from ``low`` and gives 60 seconds of grace.
"""

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
BETWEEN_STARTS = 10  # seconds a requeued job waits; SLURM's default is 120

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthInfo=socket={folder}/munge.socket,cred_expire={wait}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=500000
KillWait=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""


def missing() -> list[str]:
    """The programs that are not installed."""
    return [name for name in NEEDED if _found(name) is None]


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")


class Cluster:
    """Its commands; each waits for its end."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment

    def __call__(self, name: str, *arguments: object) -> str:
        """What a command prints."""
        done = subprocess.run(
            [name, *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def shows(self, job: str) -> dict[str, str]:
        """The fields of ``scontrol show job``."""
        text = self("scontrol", "--oneliner", "show", "job", job)
        return dict(each.split("=", 1) for each in text.split(" ") if "=" in each)

    def wait(self, job: str, *states: str, seconds: float = 240) -> dict[str, str]:
        """Until the job is in one of the states."""
        until = time.monotonic() + seconds
        while (shown := self.shows(job))["JobState"] not in states:
            assert time.monotonic() < until, f"{shown}\n{self.log(job)}"
            time.sleep(0.5)
        return shown

    def log(self, job: str) -> str:
        """The output of a job so far."""
        path = self.folder / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, job: str, words: str, seconds: float = 240) -> None:
        """Until its output has these words."""
        until = time.monotonic() + seconds
        while words not in self.log(job):
            assert time.monotonic() < until, self.log(job)
            time.sleep(0.2)


@contextmanager
def cluster(folder: Path, environment: dict[str, str]) -> Iterator[Cluster]:
    """Its daemons run inside; jobs have this environment.

    Args:
        folder: An empty one with a short path: a socket is in it.
        environment: Variables of its commands.
    """
    _configure(folder)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    files = {"key-file": "key", "socket": "munge.socket", "pid-file": "munge.pid"}
    files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
    options = [f"--{name}={folder / file}" for name, file in files.items()]
    environment = environment | {"SLURM_CONF": str(folder / "slurm.conf")}
    found = Cluster(folder, environment)
    with ExitStack() as daemons:
        for name, *arguments in (
            ("munged", "--foreground", "--force", *options),
            ("slurmctld", "-D"),
            ("slurmd", "-D"),
        ):
            path = _found(name)
            assert path is not None
            daemons.enter_context(_running([path, *arguments], environment))
            if name == "munged":
                _wait_until((folder / "munge.socket").exists)
        _wait_until(lambda: "idle" in found("sinfo", "--noheader", "--format=%T"))
        yield found
        for job in found("squeue", "--noheader", "--format=%A").split():
            found("scancel", job)
        _wait_until(lambda: not found("squeue", "--noheader"))


def _configure(folder: Path) -> None:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    with ExitStack() as sockets:
        ports = []
        for _ in range(2):
            one = sockets.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            ports.append(one.getsockname()[1])
    text = CONFIGURATION.format(
        folder=folder,
        host=socket.gethostname().partition(".")[0],
        user=getpass.getuser(),
        ports=ports,
        wait=BETWEEN_STARTS,
    )
    (folder / "slurm.conf").write_text(text)


@contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def _wait_until(true: object, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            if true():  # type: ignore[operator]
                return
        except AssertionError:  # the daemon does not answer yet
            if time.monotonic() > until:
                raise
        assert time.monotonic() < until
        time.sleep(0.3)
