"""Lets checkpoints share the files of unchanged tensors, however small these are."""

from resilient.saving import unchanged


def share_files_of_small_tensors() -> None:
    """From now on in this process."""
    unchanged._LARGE, unchanged._WORTH = 64, 1
