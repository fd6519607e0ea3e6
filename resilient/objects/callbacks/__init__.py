"""What callbacks know: captured between batches, put back in a new process.

``capture`` is what an attempt calls. ``objects/tracker`` captures what changed on a
callback since training began; here ``files``, ``tensorboard`` and ``orbax``
know how far a callback that writes files had come.
"""
