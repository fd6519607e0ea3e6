"""A disk that is full from now on: no file of this process grows beyond a size."""

import resource
import sys


def no_file_beyond(size: int, hard: int | None = None) -> None:
    """The size is in bytes; the hard limit is the same one, or as told."""
    # CPython 3.11 keeps half a file of bytecode, and the next process cannot import it
    sys.dont_write_bytecode = True
    limits = (size, size if hard is None else hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
