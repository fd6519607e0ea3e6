"""Which data adapter stands in for Keras's own."""

from collections.abc import Mapping
from typing import Any

import keras

from resilient import keras_internals
from resilient.data.arrays import SeekableArrays
from resilient.errors import DataNotResumableError, describe


def training_adapter(arguments: Mapping[str, Any]) -> SeekableArrays:
    """The adapter for the input that ``fit`` was given.

    Args:
        arguments: Keyword arguments that Keras gives to its epoch iterator.

    Raises:
        DataNotResumableError: The input is not made of arrays.
    """
    x, y = arguments["x"], arguments.get("y")
    sample_weight = arguments.get("sample_weight")
    if not _are_arrays(x, y, sample_weight):
        raise _not_arrays("x", x)
    return _adapter_class()(
        x,
        y,
        sample_weight=sample_weight,
        batch_size=arguments.get("batch_size"),
        steps=_steps_per_epoch(arguments.get("steps_per_epoch")),
        shuffle=arguments.get("shuffle", False),
        class_weight=arguments.get("class_weight"),
    )


def require_array_validation(data: Any) -> None:
    """Refuse validation data that may have a position of its own.

    Args:
        data: ``validation_data`` of ``fit``, or what it split off.

    Raises:
        DataNotResumableError: The validation data is not made of arrays.
    """
    parts = keras.utils.unpack_x_y_sample_weight(data)
    if not _are_arrays(*parts):
        raise _not_arrays("validation_data", parts[0])


def _are_arrays(*values: Any) -> bool:
    if isinstance(values[0], keras_internals.DataAdapter):
        return False
    return bool(keras_internals.can_convert_arrays(values))


def _steps_per_epoch(steps: int | None) -> int | None:
    """Keras's own cap, which it applies before it makes its adapter."""
    cap = getattr(keras.config, "max_steps_per_epoch", lambda: None)()
    return cap if cap and (not steps or cap < steps) else steps


def _adapter_class() -> type[SeekableArrays]:
    if keras_internals.BACKEND == "tensorflow":
        from resilient.data.arrays_tensorflow import TensorFlowArrays

        return TensorFlowArrays
    if keras_internals.BACKEND == "torch":
        from resilient.data.arrays_torch import TorchArrays

        return TorchArrays
    from resilient.data.arrays import JaxArrays

    return JaxArrays


def _not_arrays(name: str, value: Any) -> DataNotResumableError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return DataNotResumableError(
        describe(
            f"`{name}` has no position that an interrupted run could get back to: "
            "for now only arrays have one (numpy, backend tensors, pandas, scipy "
            "sparse, in lists and dicts).",
            f"{name} of type {kind}",
            "Pass arrays, or train with model.fit.",
        )
    )
