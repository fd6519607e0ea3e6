"""Checkpoints of every released schema, which are restored for ever.

``write`` wrote those of a schema, once, with the release that had it. They are never
written again: ``test_released`` restores them with whatever the code is today. What is
trained is in ``program``, the same then and now, and of what a checkpoint of the user's
own values is made in ``values``; both may be added to, and not changed.
"""
