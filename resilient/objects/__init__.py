"""Tracks Python objects: what they hold, what has changed, and how to restore it.

It covers attributes of callbacks, of datasets and of a loop's objects. Nothing that a
checkpoint names is unpickled, imported or called; state that cannot be seen is named in
a warning. It opens no files except those of Keras's callbacks, and knows nothing of
data positions. ``data``, ``saving`` and all layers above import it.
"""
