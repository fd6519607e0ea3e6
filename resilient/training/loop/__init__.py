"""Custom training loops: ``resilient.Run``.

``api`` is what users call; ``attempt`` finds the checkpoint and follows the loop in
this process, ``batches`` feeds it data, ``history`` keeps what was logged, and
``state`` makes a checkpoint of all that.
"""
