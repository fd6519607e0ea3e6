"""Detects a loss that is not finite, and rolls the run back.

``loss_watch`` checks the losses, and ``rollback`` records which batches a run skips.
"""
