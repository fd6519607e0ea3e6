"""Assigns initial weights to the models of a loop: ``start_from`` of ``Run``.

Importing this module loads neither Keras nor a backend.
"""

from collections.abc import Collection, Mapping
from typing import Any

from resilient.convert.start import StartFrom
from resilient.errors import NotSupportedError, message
from resilient.training.options import Location


def checked_starts(
    source: Location | Mapping[str, Location] | None,
    layers: str | None,
    models: Collection[str],
    state: Any,
) -> dict[str, StartFrom]:
    """The initial weights of each model, by the name under which it was passed.

    Args:
        source: For the only model, or a dict by name.
        layers: ``start_layers``, for all of them.
        models: Names of the Keras models and layers.
        state: The ``state`` of ``Run``, if any.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: It does not say which model is meant.
        NotSupportedError: The loop trains copies of the weights.
    """
    named: Mapping[str, Location | None]
    if isinstance(source, Mapping):
        named = source
    else:
        StartFrom.checked(source, layers)  # first of all
        named = dict.fromkeys(models, source)
        if source is not None and len(models) != 1:
            raise ValueError(
                message(
                    "`start_from` must say which model starts with which weights, "
                    "unless Run is given exactly one Keras model.",
                    received=f"start_from={source!r}, models: {_listed(models)}",
                    hint='Pass start_from={"name": path}, with the name of a Keras '
                    "model or layer that you pass to Run.",
                )
            )
    if unknown := [name for name in named if name not in models]:
        raise ValueError(
            message(
                "`start_from` names a model that was not passed to Run.",
                received=repr(unknown[0]),
                hint=f"The models are: {_listed(models)}.",
            )
        )
    asked = {name: StartFrom.checked(each, layers) for name, each in named.items()}
    starts = {name: each for name, each in asked.items() if each is not None}
    if starts and state is not None:
        raise NotSupportedError(
            "`start_from` sets the weights of models, but with `state` the loop "
            "trains copies of them.",
            received=f"start_from={source!r}, and a state",
            hint="Write the weights to a file with `resilient export`, load it into "
            "the model, and then make the state.",
        )
    return starts


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "none"
