"""Checks that a ``.weights.h5`` file is self-contained, before Keras reads it."""

import subprocess
import sys
from pathlib import Path

import msgspec

from resilient.convert.matching import Layout
from resilient.errors import NotSupportedError

LOOK = Path(__file__).with_name("hdf5_look.py")
# Seconds that a look may take: some for every file, and one for so many bytes.
SECONDS, _BYTES = 60.0, 10e6


class _Found(msgspec.Struct, forbid_unknown_fields=True):
    """What ``hdf5_look`` prints."""

    layout: dict[str, tuple[tuple[int, ...], str]] = {}
    problem: str = ""
    unreadable: str = ""


def layout(path: Path) -> Layout:
    """Shape and dtype of each dataset.

    Raises:
        NotSupportedError: The file has something that Keras does not write.
        OSError: It is none that libhdf5 can read.
    """
    found = _look(path)
    if found.unreadable:
        raise OSError(found.unreadable)
    if found.problem:
        raise NotSupportedError(
            "This is not a file as Keras writes it, with all its data inside.",
            received=f"{path}: {found.problem}",
            hint="Import a file that Keras's save_weights or save wrote.",
        )
    return found.layout


def _look(path: Path) -> _Found:
    kept = (("-E", sys.flags.ignore_environment), ("-s", sys.flags.no_user_site))
    flags = [flag for flag, on in kept if on]
    command = [sys.executable, "-P", *flags, str(LOOK), str(path)]
    limit = SECONDS + path.stat().st_size / _BYTES
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _Found(problem=f"cannot be read within {limit:.0f} s")
    if done.returncode < 0:
        return _Found(problem=f"crashes libhdf5 (signal {-done.returncode})")
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
    return msgspec.json.decode(done.stdout, type=_Found)
