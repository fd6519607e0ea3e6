"""Counts the kernel's OOM kills, where the kernel counts them.

Such a process dies of SIGKILL like any other; only these counters tell it apart.
"""

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")


def oom_kills(
    own: Path = _OWN, cgroups: Path = _CGROUPS, machine: Path = _MACHINE
) -> int:
    """OOM kills so far in our control group, or on the machine; 0 if not counted.

    Args:
        own: The file that names our control group; only version 2 is read.
        cgroups: Where control groups are mounted.
        machine: The machine's counters, used without a control group.
    """
    groups = [line[3:] for line in _lines(own) if line.startswith("0::")]
    for group in (*groups, "/") if groups else ():
        counts = _lines(cgroups / group.strip("/") / "memory.events")
        if (count := _oom_kill(counts)) is not None:
            return count
    return _oom_kill(_lines(machine)) or 0


def _oom_kill(lines: list[str]) -> int | None:
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdecimal():
            return int(value)
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
