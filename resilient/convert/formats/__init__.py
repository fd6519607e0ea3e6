"""Files of other libraries, which an export writes and an import reads.

A module for each: it imports its library only inside functions.
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args

from resilient.errors import BackendNotAvailableError, message

Format = Literal["keras", "weights.h5", "safetensors", "tf", "orbax", "torch"]
FORMATS: tuple[Format, ...] = get_args(Format)

# The end of a target's name, or all of it, tells the format.
_ENDINGS: dict[str, Format] = {
    **{name: name for name in FORMATS if name != "weights.h5"},
    ".weights.h5": "weights.h5",
    "pt": "torch",
    "pth": "torch",
}
_OF_KERAS: dict[Format, str] = {"keras": ".keras", "weights.h5": ".weights.h5"}
_INSTALL: dict[Format, tuple[str, str]] = {
    "safetensors": ("safetensors", "safetensors"),
    "tf": ("tensorflow", '"keras-resilient[tensorflow]"'),
    "orbax": ("orbax.checkpoint", '"keras-resilient[jax]"'),
    "torch": ("torch", '"keras-resilient[torch]"'),
}


def format_of(target: Path, chosen: Format | None) -> Format:
    """The format of a file or directory that is to be written.

    Args:
        target: Its path.
        chosen: The format, where the name does not tell.

    Raises:
        ValueError: Nothing tells, or Keras would not read it under that name.
    """
    name = target.name
    told = _ENDINGS.get(name.rpartition(".")[2])
    if name.endswith(".weights.h5"):
        told = _ENDINGS[".weights.h5"]
    found = chosen or told
    if found not in FORMATS:
        raise ValueError(
            message(
                "The name does not tell which format to write.",
                received=repr(chosen or name),
                hint=(
                    "Let it end in .keras, .weights.h5, .safetensors, .tf, .orbax "
                    "or .pt, "
                    f"or pass a format: {', '.join(FORMATS)}."
                ),
            )
        )
    if not name.endswith(ending := _OF_KERAS.get(found, "")):
        raise ValueError(
            message(
                f"Keras reads this format only from names that end in {ending}.",
                received=repr(name),
                hint=f"Write to {name.partition('.')[0] or 'model'}{ending}.",
            )
        )
    return found


def library(kind: Format) -> ModuleType:
    """Import the library of a format.

    Raises:
        BackendNotAvailableError: It is not installed; the message says how to get it.
    """
    name, package = _INSTALL[kind]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BackendNotAvailableError(
            f"The format {kind} needs a library that cannot be imported.",
            received=f"{type(error).__name__}: {error}",
            hint=f"Install it with: pip install {package}",
            name=error.name,
        ) from error
