"""NumPy arrays and the like: one module for each backend's way of batching."""
