"""How often the kernel has killed for want of memory, as far as it says so.

A process that is killed so dies of a SIGKILL like any other; only these counters tell.
"""

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")


def oom_kills(
    own: Path = _OWN, cgroups: Path = _CGROUPS, machine: Path = _MACHINE
) -> int:
    """Kills so far in our control group, or on the machine; 0 where nobody counts.

    Args:
        own: The file that names our control groups.
        cgroups: Where control groups are mounted.
        machine: Counters of the whole machine, for those without a control group.
    """
    for path in _candidates(own, cgroups):
        if (count := _counter(path)) is not None:
            return count
    return _counter(machine) or 0


def _candidates(own: Path, cgroups: Path) -> list[Path]:
    paths = []
    for line in _text(own).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        group = group.strip("/")
        if number == "0":  # version 2
            paths += [cgroups / group / "memory.events", cgroups / "memory.events"]
        elif "memory" in controllers.split(","):
            memory = cgroups / "memory"
            paths += [memory / group / "memory.oom_control"]
            paths += [memory / "memory.oom_control"]
    return paths


def _counter(path: Path) -> int | None:
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
