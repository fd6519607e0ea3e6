"""Replaces paths that a library would misread, and hides files from it."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

from resilient.backends.stored_files import StoredFiles


@contextlib.contextmanager
def plain(directory: str) -> Iterator[str]:
    """The directory under an absolute path of UTF-8 without brackets and backslashes.

    To TensorFlow ``run[1]`` is a pattern, which ``run1`` matches; to TensorStore a
    backslash separates directories. Neither takes a path that is not UTF-8.
    """
    path = os.path.abspath(directory)
    if not any(c in "[\\" or "\ud800" <= c <= "\udfff" for c in path):
        yield path
        return
    with tempfile.TemporaryDirectory() as beside:
        link = os.path.join(beside, "directory")
        os.symlink(path, link)
        yield link


@contextlib.contextmanager
def only_stored(files: StoredFiles) -> Iterator[str]:
    """A plain path to a directory that has these files, and nothing else.

    For a library that opens whatever the files that it reads name.
    """
    with tempfile.TemporaryDirectory() as beside:
        for name in files.sizes:
            os.close(files.open(name))  # so it is a regular file
            link = os.path.join(beside, name)
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(os.path.abspath(files.path(name)), link)
        yield beside
