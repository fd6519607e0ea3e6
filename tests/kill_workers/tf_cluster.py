"""Starting a TensorFlow cluster of local processes, with fresh ports."""

import json
from pathlib import Path

from support import gang

from resilient.supervise.environment import HOST, free_ports


def run(script: Path, *arguments: object, jobs: tuple[str, ...] = ()) -> list[str]:
    """What each process prints.

    Args:
        script: Run by each, with the same arguments.
        arguments: Of the script.
        jobs: The job of each process, ``"chief"`` or ``"worker"``. Without any there is
            one process, and no cluster.
    """
    told = _tf_configs(jobs) if jobs else [{}]
    return gang.run_with(told, script, *arguments, timeout=300).check().outputs


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
