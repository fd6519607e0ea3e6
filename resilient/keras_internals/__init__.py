"""The only importer of ``keras.src``, with every private name we rely on, and why.

Keras's own ``fit`` runs, whole. What we need from inside it:

* the epoch iterator class of the backend's trainer module, which ``fit`` looks up by
  name when it builds its input: subclassed to get control between two batches and to
  start at batch k (its generator yields step numbers and never pulls data);
* the name ``callbacks_module`` in that module, through which ``fit`` reaches
  ``CallbackList``: replaced to get control around ``on_train_begin``,
  ``on_epoch_end`` and ``on_train_end`` without adding a callback (a callback with
  ``on_train_batch_end`` would turn off Keras's asynchronous dispatch);
* the thread pool in which ``CallbackList`` calls callbacks, see ``names``;
* the name by which its serialization reaches TensorFlow, see ``names``;
* local variables of ``fit`` (``LOCALS``), read once, when it builds the iterator;
* its data adapters, each subclassed by ours;
* attributes of model, iterator, callback list and adapters.

Names shared by all supported releases are in ``names``; ``generation`` covers what one
generation of them does differently, and nothing else looks at Keras's version.
Everything we rely on is listed in ``expected``; ``contract`` refuses a Keras that is
built differently: a silent change there would be a silent error here.

Importing this package imports Keras and its backend.
"""

from resilient.keras_internals import names
from resilient.keras_internals.keras_3_12 import Keras312
from resilient.keras_internals.names import *  # noqa: F403  # it defines __all__
from resilient.keras_internals.unknown import RELEASE, unknown_keras


def _generation() -> Keras312:
    """The generation of the installed Keras; newer ones count as the newest."""
    if RELEASE < (3, 16):
        return Keras312()
    try:
        from resilient.keras_internals.keras_3_16 import Keras316
    except ImportError as error:
        raise unknown_keras(str(error)) from error
    return Keras316()


generation: Keras312 = _generation()

__all__ = ["generation"]
__all__ += names.__all__
