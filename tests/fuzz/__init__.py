"""Files that somebody else may have written, mutated: every reader has to stay calm.

``oracle`` says what a reader may do, ``target`` what there is to read. In ``tests/``
``python -m fuzz`` mutates and reads until the time is over; ``corpus`` keeps what was
found before.
"""
