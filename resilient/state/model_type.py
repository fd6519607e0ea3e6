"""Refuses anything but a Keras 3 model, and says what it is instead."""

from typing import Any

from resilient import keras_internals
from resilient.errors import message

_OF_KERAS_2 = ("tf_keras.", "tensorflow.python.keras.")


def require_model(model: Any) -> None:
    """Raise TypeError unless it is a Keras model."""
    if keras_internals.is_trainer(model):
        return
    bases = [f"{cls.__module__}.{cls.__qualname__}" for cls in type(model).__mro__]
    problem = "resilient.fit trains a keras.Model."
    hint = (
        f"Pass a Keras model first (Keras uses the {keras_internals.BACKEND} backend)."
    )
    if any(base.startswith(_OF_KERAS_2) for base in bases):
        problem = "This is a model of Keras 2; resilient.fit trains models of Keras 3."
        hint = "Build it with `import keras`, and without TF_USE_LEGACY_KERAS."
    raise TypeError(message(problem, received=_described(bases), hint=hint))


def _described(bases: list[str]) -> str:
    """A class, and its first base from another package."""
    own = bases[0].partition(".")[0]
    for base in bases:
        if base.partition(".")[0] not in (own, "builtins"):
            return f"{bases[0]}, a subclass of {base}"
    return bases[0]
