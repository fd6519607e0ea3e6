"""keras.utils.PyDataset: order, workers, hooks."""
