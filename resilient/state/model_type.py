"""Refuses anything but a Keras 3 model, and says what it is instead."""

from typing import Any

from resilient import keras_internals
from resilient.errors import message


def require_model(model: Any) -> None:
    """Raise TypeError unless it is a Keras model."""
    if not keras_internals.is_trainer(model):
        bases = [f"{x.__module__}.{x.__qualname__}" for x in type(model).__mro__[:-1]]
        raise TypeError(
            message(
                "resilient.fit trains a keras.Model, of Keras 3.",
                received=", a subclass of ".join(bases[:3]),
                hint="Pass a model first, built with `import keras` and without "
                "TF_USE_LEGACY_KERAS (Keras uses the "
                f"{keras_internals.BACKEND} backend).",
            )
        )
