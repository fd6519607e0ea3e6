"""Training loops that people write by hand: ``resilient.Run``.

``api`` and ``context`` are what they call; ``start`` finds the checkpoint, ``attempt``
follows the loop in this process, ``batches`` gives it the data, ``history`` what was
logged, and ``run_state`` makes a checkpoint of all that.
"""
