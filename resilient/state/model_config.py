"""A model's architecture as serialised by Keras, kept with each checkpoint of a fit.

It is for people: no model is created from it, since Keras would import the modules and
instantiate the classes that a checkpoint names. A model without one (a class without
``get_config``) is saved as well.
"""

import json
import logging
import warnings

import keras

from resilient.state.build import is_built

logger = logging.getLogger(__name__)

# Most characters in a checkpoint. (An initializer's argument may be a matrix.)
_LONGEST = 1 << 22


class Architecture:
    """The architecture of a compiled model as text, known once it is built."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._built = False
        self._text: str | None = None

    def now(self) -> str | None:
        """The text, computed once; None if there is none (yet)."""
        if not self._built and is_built(self._model):
            self._built = True
            self._text = _serialised(self._model)
        return self._text


def _serialised(model: keras.Model) -> str | None:
    try:
        with warnings.catch_warnings():
            # Keras's own get_config of an optimizer warns under numpy 2.4.
            warnings.simplefilter("ignore")
            text = json.dumps(keras.saving.serialize_keras_object(model))
    except Exception:  # a custom get_config may raise anything
        logger.debug("the model has no config", exc_info=True)
        return None
    if len(text) > _LONGEST:
        logger.debug("the model's config is too long to keep")
        return None
    return text
