"""NumPy arrays and their like: one module for each backend's way to batches."""
