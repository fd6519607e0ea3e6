"""What tells one call of ``fit`` from another: its model, its line, its weights.

Needs Keras; ``journal`` compares the descriptions without it.
"""

import json
import linecache
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import xxhash

from resilient.state.build import is_built
from resilient.state.fingerprint import learning_rates
from resilient.state.settings import Settings
from resilient.training.enabled.fits_file import LONGEST_LINE, MOST_LINES, Call

_LONGEST = 40  # characters of a name
_LIBRARIES = ("site-packages", "dist-packages")


def directory_name(number: int, model: keras.Model) -> str:
    """Of the call with this number: ``003-classifier``."""
    return f"{number:03d}-{_name(model)}"


def called(model: keras.Model, after: int | None, *, alone: bool) -> Call:
    """Describe a call of ``fit`` that is on the stack.

    Args:
        model: Which it trains.
        after: Number of the call that trained this model last.
        alone: Whether no other process trains with this one.
    """
    return Call(
        model=_name(model),
        settings=_hash([json.dumps(_settings(model)).encode()]),
        after=after,
        weights=_weights(model) if alone and is_built(model) else None,
        lines=_lines(),
    )


def _name(model: keras.Model) -> str:
    """Its name, without the number that Keras appends: other models shift that."""
    plain = re.sub(r"_\d+$", "", model.name)
    return re.sub(r"\W+", "-", plain, flags=re.ASCII).strip("-")[:_LONGEST] or "model"


def _settings(model: keras.Model) -> list[Any]:
    """What a sweep may vary between calls, such as layers and learning rates."""
    optimizer = getattr(model, "optimizer", None)  # not compiled: Keras says so
    rates = {name: rate for name, (_, rate) in learning_rates(optimizer).items()}
    return [type(model).__name__, Settings(model, whole=True).facts, rates]


def _weights(model: keras.Model) -> str:
    arrays = map(keras.ops.convert_to_numpy, model.weights)
    return _hash(array.tobytes() for array in arrays)


def _hash(parts: Any) -> str:
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _lines() -> list[str]:
    """Lines of the program that are about to call ``fit``, the innermost first."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None and len(found) < MOST_LINES:
        path = Path(frame.f_code.co_filename)
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        ours = package in ("resilient", "keras")
        if not ours and not set(path.parts).intersection(_LIBRARIES):
            text = linecache.getline(str(path), frame.f_lineno).strip()
            found.append(f"{path.name}: {text}"[:LONGEST_LINE])
        frame = frame.f_back
    return found
