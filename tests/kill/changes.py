"""What a script has otherwise than before, on purpose: changes of a ``Case``.

By the name for ``allow``, and what it is of that, where there are several.
"""

from collections.abc import Callable

import keras

from .scenarios.parts import compiled, images, noisy
from .scenarios.registry import SCENARIOS, Case

CHANGES: dict[str, Callable[[Case], None]] = {}


def change(case: Case, name: str) -> None:
    """Change what a script is about to train."""
    if name in CHANGES:
        CHANGES[name](case)
        return
    # The data of that scenario.
    other = SCENARIOS[name.removeprefix("data ")].build()
    case.args = other.args
    case.kwargs |= {k: v for k, v in other.kwargs.items() if k == "batch_size"}


def _of(name: str) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    def register(function: Callable[[Case], None]) -> Callable[[Case], None]:
        CHANGES[name] = function
        return function

    return register


@_of("batch_size")
def _(case: Case) -> None:
    case.kwargs["batch_size"] = 4


@_of("callbacks")
def _(case: Case) -> None:
    case.callbacks.append(keras.callbacks.ReduceLROnPlateau("loss", patience=0))


@_of("config")
def _(case: Case) -> None:
    case.model.layers[3].activation = keras.activations.tanh


@_of("data")
def _(case: Case) -> None:
    case.args = images(40, seed=4)


@_of("learning_rate")
def _(case: Case) -> None:
    case.model.optimizer.learning_rate = 0.25


@_of("metrics")
def _(case: Case) -> None:
    more = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    case.model = compiled(noisy(), metrics=["accuracy", more])


@_of("optimizer")
def _(case: Case) -> None:
    case.model = compiled(noisy(), keras.optimizers.SGD(0.05, momentum=0.9))
