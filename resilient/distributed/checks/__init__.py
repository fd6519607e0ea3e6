"""Checks that all processes train the same model on the same number of batches."""
