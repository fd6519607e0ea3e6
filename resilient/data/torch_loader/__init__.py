"""torch DataLoaders, torchdata's StatefulDataLoader too."""
