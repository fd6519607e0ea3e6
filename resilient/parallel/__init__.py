"""The engines that train one model in several processes: TensorFlow's, JAX's, ours.

``engine_of`` finds the one that a model trains with. What is common to them, and what
they may do around Keras's ``fit``, is ``Engine``.
"""

import importlib
from typing import TYPE_CHECKING

from resilient.parallel.engine import Engine

if TYPE_CHECKING:
    import keras


def engine_of(model: "keras.Model") -> Engine:
    """The engine that trains a model.

    Raises:
        NotSupportedError: Several processes would train, each a model of its own.
    """
    import keras

    module = importlib.import_module(f"{__name__}.{keras.backend.backend()}")
    engine: Engine | None = module.engine_of(model)
    return engine or Engine()
