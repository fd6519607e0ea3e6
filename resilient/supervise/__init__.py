"""Runs a training script, and runs it again when it dies: ``resilient run``.

Nothing here imports Keras or a backend, and scripts need no change: it reads what
``resilient.fit`` writes (heartbeat, events, checkpoints) and appends events of its own.
``cli`` imports it.
"""
