"""Detects a loss that is not finite, and rolls the run back.

``options`` holds the user's choices, ``loss_watch`` checks the losses, and ``rollback``
records which batches a run skips.
"""
