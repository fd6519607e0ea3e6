"""Training loops that people write by hand: ``resilient.Run``.

``run.py`` and ``block.py`` are what they call; ``starting.py`` finds the checkpoint,
``life.py`` follows the loop in this process, ``batches.py`` gives it the data;
``objects/`` knows what was passed by name, ``history.py`` what was logged;
``contents.py`` makes a checkpoint of all that.
"""
