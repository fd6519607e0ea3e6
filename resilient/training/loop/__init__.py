"""Custom training loops: ``resilient.Run``.

``api`` and ``context`` are what users call; ``start`` finds the checkpoint, ``attempt``
follows the loop in this process, ``batches`` feeds it data, ``history`` keeps what was
logged, and ``run_state`` makes a checkpoint of all that.
"""
