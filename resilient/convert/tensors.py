"""Tensors by the paths of variables: names, comparison, and safetensors files.

Shape and dtype have to be the same: nothing is cast.
"""

from collections.abc import Iterable, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from resilient.errors import (
    BackendNotAvailableError,
    CheckpointMismatchError,
    printable,
)

Tensors = Mapping[str, np.ndarray]

_METADATA = "__metadata__"  # where safetensors has its notes
_LISTED = 20  # differences that an error lists


def unique_names(paths: Iterable[str]) -> list[str]:
    """A name for each path: the path, with a number where it is taken."""
    names = {_METADATA: ""}
    for path in paths:
        tried = chain([path], (f"{path}_{number}" for number in count(2)))
        names[next(name for name in tried if name not in names)] = path
    return list(names)[1:]


def layouts(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Shape and dtype of arrays or variables, by name."""
    return {name: f"{each.shape} {each.dtype}" for name, each in tensors.items()}


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Compare the layouts of a source and a model; a line for each name that differs.

    The lines of the model's names come first.
    """
    found = {}
    for name in (*ours, *theirs):
        if name not in theirs:
            found[name] = f"missing: {name}"
        elif name not in ours:
            found[name] = f"unexpected: {name}"
        elif theirs[name] != ours[name]:
            found[name] = f"{name}: {theirs[name]} there, {ours[name]} here"
    return found


def first_lines(lines: Iterable[str]) -> list[str]:
    """The first of many lines, and how many more there are."""
    found = [printable(line) for line in lines]
    if len(found) > _LISTED:
        found[_LISTED:] = [f"and {len(found) - _LISTED:,} more"]
    return found


def mismatch(source: Path, lines: Iterable[str]) -> CheckpointMismatchError:
    """The error for a source that does not match the model."""
    return CheckpointMismatchError(
        "What is to be taken from this source does not match the model. Nothing was "
        "changed.",
        received="\n  ".join([str(source), *first_lines(lines)]),
        hint="Build and compile the model as in the program that saved the source. Or "
        'let a new run take only some layers, for example start_layers="encoder/.*": '
        "a regular expression that matches whole paths of weights.",
    )


def safetensors() -> Any:
    """Import safetensors.

    Raises:
        BackendNotAvailableError: It is not installed.
    """
    try:
        import safetensors.numpy
    except ImportError as error:
        raise BackendNotAvailableError(
            "This format needs safetensors.",
            received=str(error),
            hint="Install it with: pip install safetensors",
            name=error.name,
        ) from error
    return safetensors.numpy
