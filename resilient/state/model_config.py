"""A model's architecture as serialised by Keras, kept with each checkpoint of a fit.

It is for people: no model is created from it, since Keras would import the modules and
instantiate the classes that a checkpoint names. A model without one (a class without
``get_config``) is saved as well.
"""

import json
import logging
import warnings
from typing import Any

import keras

from resilient.serialization import JSON
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
        self._look()
        return self._text

    def config(self) -> JSON:
        """What the model's ``get_config()`` returns; empty if there is none."""
        # What the text was made of has the same, and large models need seconds for it.
        whole = self._look()
        return raw_config(self._model) if whole is None else dict(whole["config"])

    def _look(self) -> JSON | None:
        """What Keras makes of the model, the first time that it is built."""
        if self._built or not is_built(self._model):
            return None
        self._built = True
        whole, self._text = _serialised(self._model)
        return whole


def raw_config(thing: Any) -> JSON:
    """``get_config()``, if available."""
    try:
        with warnings.catch_warnings():
            # Keras's own get_config of an optimizer warns under numpy 2.4.
            warnings.simplefilter("ignore")
            return dict(thing.get_config())
    except Exception:
        # No optimizer, or a class without a config: nothing to compare.
        return {}


def _serialised(model: keras.Model) -> tuple[JSON | None, str | None]:
    """As an object, and as text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as above
            whole = keras.saving.serialize_keras_object(model)
            text = json.dumps(whole)
    except Exception:  # a custom get_config may raise anything
        logger.debug("the model has no config", exc_info=True)
        return None, None
    if len(text) > _LONGEST:
        logger.debug("the model's config is too long to keep")
        return whole, None
    return whole, text
