"""Python objects: what they hold, what has changed, and how it gets back in place.

Attributes of callbacks, of datasets, of the objects of a loop. Nothing is unpickled,
imported or called that a checkpoint names; what cannot be seen is named in a warning.
It opens no files but those of Keras's callbacks, and knows no position of data.
``data``, ``saving`` and all above import it.
"""
