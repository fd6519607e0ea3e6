"""From the state of a run to a committed checkpoint, and back.

A snapshot is taken, written in the background, committed, and old ones are pruned; and
of those on the disk the one to resume from is chosen. It refuses to know what trains:
``training`` and ``convert`` import it.
"""
