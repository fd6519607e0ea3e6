"""Training loops that people write by hand: ``resilient.Run``.

``api`` and ``context`` are what they call; ``start`` finds the checkpoint,
``attempt`` follows the loop in this process, ``batches`` gives it the data;
``objects/`` knows what was passed by name, ``history.py`` what was logged;
``run_state`` makes a checkpoint of all that.
"""
