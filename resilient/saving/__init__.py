"""Takes the state of a run to a committed checkpoint, and back.

A snapshot is taken, written in the background and committed, and old checkpoints are
pruned; the one to resume from is chosen here as well. It does not know what trains:
``training`` and ``convert`` import it.
"""
