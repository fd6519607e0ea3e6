"""torch DataLoaders, including torchdata's StatefulDataLoader."""
