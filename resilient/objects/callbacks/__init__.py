"""The state of callbacks: captured between batches, restored in a new process.

An attempt calls ``capture``, which keeps what has changed on a callback since training
began. What ``special`` describes is kept outside the attributes, such as a screen's
progress; ``files`` keeps the content of a file, or how far Orbax wrote to a directory,
and ``tensorboard`` how far it wrote.
"""
