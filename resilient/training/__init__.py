"""A training in this process: what ``resilient.fit`` and ``resilient.Run`` do.

``fit`` drives Keras's fit, ``loop`` the user's own; what is the same for both is beside
them. It refuses to know what one kind of data or of object is (``data``, ``objects``),
and how a checkpoint gets on the disk (``saving``, ``storage``). Only ``resilient``
itself imports it.
"""
