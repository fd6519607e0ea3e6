"""The state of callbacks: captured between batches, restored in a new process.

An attempt calls ``capture``. ``objects/tracker`` captures what has changed on a
callback since training began; ``files``, ``tensorboard`` and ``orbax`` record how far
callbacks that write files have got.
"""
