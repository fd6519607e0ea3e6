"""What tells one call of ``fit`` from another: its model, its line, its weights.

Needs Keras; ``calls`` compares the facts without it.
"""

import json
import os
import re
import sys
import traceback
from pathlib import Path

import keras
import xxhash

from resilient.state.build import is_built
from resilient.state.fingerprint import learning_rates
from resilient.state.settings import Settings
from resilient.telemetry.heartbeat import VARIABLE
from resilient.training.enabled.calls import Facts

_LONGEST = 40  # characters of a name
_MOST = 20  # lines
_OURS = Path(__file__).parents[2]
_LIBRARIES = {"site-packages", "dist-packages"}


def described(model: keras.Model, trained: int | None, *, alone: bool) -> Facts:
    """Describe a call of ``fit`` that is on the stack.

    Args:
        model: Which it trains.
        trained: Number of the call that trained this model last.
        alone: Whether no other process trains with this one.

    Returns:
        The program; which launch by ``resilient run`` it is, if any, and which process;
        the name of the model; a checksum of the settings of its layers and its
        optimizer; which call trained it last; a checksum of the weights that it begins
        with, if it is known; the lines of the program that call it, innermost first.
    """
    # Without the number that Keras appends: other models shift that.
    name = re.sub(r"\W+", "-", re.sub(r"_\d+$", "", model.name), flags=re.ASCII)
    optimizer = getattr(model, "optimizer", None)  # not compiled: Keras says so
    rates = {key: rate for key, (_, rate) in learning_rates(optimizer).items()}
    # What a sweep may vary between calls.
    settings = [type(model).__name__, Settings(model, whole=True).facts, rates]
    weights = xxhash.xxh3_128()
    for each in model.weights if alone else []:
        weights.update(keras.ops.convert_to_numpy(each).tobytes())
    lines = []
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if not (path.is_relative_to(_OURS) or _LIBRARIES.intersection(path.parts)):
            lines.append(f"{path.name}: {frame.line}")
    return {
        "program": os.path.basename(sys.argv[0]),
        # A new directory for each launch.
        "launch": Path(os.environ.get(VARIABLE, "")).parent.name,
        "process": os.getpid(),
        "model": name.strip("-")[:_LONGEST] or "model",
        "settings of its model or optimizer": xxhash.xxh3_128_hexdigest(
            json.dumps(settings).encode()
        ),
        "trained before by": f"call {trained}" if trained else "no call",
        "weights": [weights.hexdigest()] if alone and is_built(model) else [],
        "lines": lines[:_MOST],
    }
