"""Runs a training script, and runs it again when it dies: ``resilient run``.

Nothing here imports Keras or a backend, and no script has to know of it: what
``resilient.fit`` writes (heartbeat, events, checkpoints) is read from outside. It
changes nothing in there. ``cli`` imports it.
"""
