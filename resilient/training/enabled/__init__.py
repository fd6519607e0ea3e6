"""Makes every ``model.fit`` of a program resumable, whoever calls it.

``keras.Model.fit`` is wrapped once. A call that is enabled, or has ``BackupAndRestore``
among its callbacks, runs through ``training/fit``, each in a directory of its own.
"""
