"""Makes every ``model.fit`` of a program resumable, whoever calls it.

``keras.Model.fit`` is wrapped once; what the wrapper finds enabled, or among the
callbacks, runs through ``training/fit``, in a directory for each call.
"""
