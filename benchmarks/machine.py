"""The machine that figures come from."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = (
    *("keras-resilient", "keras", "numpy", "tensorflow", "tensorflow-cpu", "jax"),
    *("jaxlib", "torch", "orbax-checkpoint", "safetensors", "lightning", "h5py"),
)


def facts(directory: str) -> dict[str, Any]:
    """What decides the figures; Linux tells more than others."""
    memory = re.search(r"MemTotal:\s*(\d+)", _text("/proc/meminfo"))
    cpu = re.search(r"model name\s*: (.*)", _text("/proc/cpuinfo"))
    return {
        "cores": os.cpu_count(),
        "cpu": cpu[1] if cpu else platform.processor(),
        "memory_gb": round(int(memory[1]) * 1024 / 1e9, 1) if memory else None,
        "file_system": file_system(directory),
        "system": f"{platform.system()} {platform.release()}",
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "versions": {name: v for name in _PACKAGES if (v := _version(name))},
    }


def words(facts: dict[str, Any]) -> str:
    """One line."""
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, "
        f"{facts['file_system']}, {facts['system']}; load {facts['load'][0]:.1f} at "
        "the start"
    )


def file_system(directory: str) -> str | None:
    """The type of the file system that a directory is on."""
    device = os.stat(directory).st_dev
    for line in reversed(_text("/proc/mounts").splitlines()):
        _, point, kind, *_ = line.split()
        try:
            if os.stat(point).st_dev == device:
                return kind
        except OSError:  # somebody else's mount
            continue
    return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
