"""Runs a training script, and runs it again when it dies: ``resilient run``.

It imports neither Keras nor a backend, and scripts need no change: it reads what
``resilient.fit`` writes (heartbeat, events, checkpoints) and appends its own events.
``cli`` imports it.
"""
