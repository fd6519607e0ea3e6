"""The state of a Keras model: its variables, replicas, random state and makeup.

Also what identifies a run (its fingerprint), and whether a checkpoint fits it. It knows
neither data nor files, and refuses to match variables by name.
"""
