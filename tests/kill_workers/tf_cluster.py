"""Starting a TensorFlow cluster of local processes, with fresh ports."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import resilient
from resilient.supervise.environment import HOST, free_ports


def run(
    script: Path, *arguments: object, jobs: tuple[str, ...] = (), timeout: float = 300
) -> list[str]:
    """What each process prints; all are ended before this returns.

    Args:
        script: Run by each, with the same arguments.
        arguments: Of the script.
        jobs: The job of each process, ``"chief"`` or ``"worker"``. Without any there is
            one process, and no cluster.
        timeout: Seconds for all of them together.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
        "PYTHONPATH": str(Path(resilient.__file__).parents[1]),
    }
    configurations = _tf_configs(jobs) if jobs else [{}]
    with ExitStack() as stack:
        processes = []
        for configuration in configurations:
            process = subprocess.Popen(
                [sys.executable, script, *map(str, arguments)],
                env=environment | configuration,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        printed = [process.communicate(timeout=timeout)[0] for process in processes]
    statuses = [process.returncode for process in processes]
    assert statuses == [0] * len(processes), printed
    return printed


def _tf_configs(jobs: tuple[str, ...]) -> list[dict[str, str]]:
    cluster: dict[str, list[str]] = {}
    tasks = []
    for job, port in zip(jobs, free_ports(len(jobs)), strict=True):
        addresses = cluster.setdefault(job, [])
        tasks.append({"type": job, "index": len(addresses)})
        addresses.append(f"{HOST}:{port}")
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks
    ]
