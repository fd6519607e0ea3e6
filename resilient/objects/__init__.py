"""Python objects: what they consist of, what has changed, and how to restore it.

It covers callbacks, what a model refers to beside its variables, datasets, and a loop's
objects. Nothing that a checkpoint names is unpickled, imported or called; state that
cannot be saved is named in a warning. It opens no files except those of Keras's
callbacks, and knows nothing of data positions. ``data``, ``saving`` and all layers
above import it.
"""
