"""Paths that a library would misread."""

import contextlib
import os
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def plain(directory: str) -> Iterator[str]:
    """The directory under an absolute path without brackets and backslashes.

    To TensorFlow ``run[1]`` is a pattern, which ``run1`` matches; to TensorStore a
    backslash separates directories.
    """
    if not any(character in directory for character in "[\\"):
        yield os.path.abspath(directory)
        return
    with tempfile.TemporaryDirectory() as beside:
        link = os.path.join(beside, "directory")
        os.symlink(os.path.abspath(directory), link)
        yield link
