"""How much more memory the process needs to save than to train.

The kernel keeps the highest resident size of a process and can be told to forget it.
Where it does neither (it is Linux that does both) nothing is measured.
"""

import re
from collections.abc import Callable
from pathlib import Path

from limits import trim
from subjects import Subject

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"


def measurable() -> bool:
    """Whether the kernel tells."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
        _status("VmHWM")
    except (OSError, TypeError):
        return False
    return True


def most_added(
    make: Callable[[], Subject], step: Callable[[], None], *, background: bool
) -> int:
    """Bytes that a save adds at most, kept buffers included.

    Whatever the subject keeps from one save to the next is allocated again, since each
    trial is given a new one. A save in the background is tried twice, the second time
    with a training step beside it: only then does it show what is copied when it is
    written to. What the step takes by itself is not counted.

    Args:
        make: A new subject; an earlier one has warmed up whatever libraries keep.
        step: Trains one step.
        background: Whether the subject saves beside training.
    """
    alone = _peak_of_save(make, lambda: None)
    if not background:
        return alone
    return max(alone, _peak_of_save(make, step) - _peak(step))


def _peak_of_save(make: Callable[[], Subject], meanwhile: Callable[[], None]) -> int:
    subject = make()

    def save() -> None:
        subject.save()
        meanwhile()
        subject.wait()

    try:
        return _peak(save)
    finally:
        subject.close()


def _peak(do: Callable[[], None]) -> int:
    """Highest resident size while it runs, above that just before."""
    trim()
    before = _status("VmRSS")
    _CLEAR.write_text(_RESET_PEAK)
    do()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s*(\d+) kB", _STATUS.read_text(encoding="ascii"))
    return int(found[1]) * 1024
