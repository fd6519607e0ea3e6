"""The state of callbacks: captured between batches, restored in a new process.

An attempt calls ``capture``, which keeps what has changed on a callback since training
began. What ``special`` describes is kept outside the attributes: ``files`` keeps the
content of a file; ``tensorboard`` and ``orbax`` record how far a directory was written;
``progress_bar`` keeps a screen's.
"""
