"""The state of a Keras model: its variables, replicas and random state.

It also holds what identifies a run (its fingerprint). It knows neither data nor files,
and refuses to match variables by name. All layers above import it.
"""
