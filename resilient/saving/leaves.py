"""What a checkpoint or a snapshot holds, flat: variables and other values, by name.

State is what training continues from. Clocks are not state, nor are files that hold
times.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resilient.saving.record import SavedState
from resilient.saving.run_json import RunJson
from resilient.serialization import JSON, Encoded, Entries
from resilient.serialization.json_values import decode

CLOCKS = "clocks"  # the only section of ``values_of`` that is not state

# A section, and a name in it; values are encoded, and may refer to arrays.
Values = dict[tuple[str, str], Encoded]

_HISTORY = "keras.callbacks.History"
# Clock values that Keras's callbacks keep outside their attributes.
_CLOCKS = {"ago", "files"}
_FILE = {"content"}  # of a ModelCheckpoint, whose file formats hold the time
_TRAINING = (
    *("stop_training", "epoch_logs", "losses", "stopped"),
    *("attributes", "gradients"),
)
_LOGGED = re.compile(r"\Ahistory\['(.*)'\]\+(?=\Z| \()")
_REPLICA = re.compile(r"\.replica_\d+\Z")


def variables_of(
    layout: Sequence[Mapping[str, Any]], tensors: Mapping[str, Any]
) -> Iterator[tuple[str, str, Any]]:
    """Each variable's name, path and tensor, each replica's copy on its own.

    Args:
        layout: Names and paths of the variables, as in ``run.json``.
        tensors: By name: of a variable that replicas have on their own, the name ends
            with whose it is.
    """
    listed = {each["name"] for each in layout}
    found: dict[str, list[str]] = {}
    for name in sorted(tensors):
        of = name if name in listed else _REPLICA.sub("", name)
        found.setdefault(of, []).append(name)
    for each in layout:
        for name in found.get(each["name"], ()):
            suffix = name.removeprefix(each["name"])
            yield name, each["path"] + suffix, tensors[name]


def values_of(process: SavedState[RunJson]) -> Values:
    """What one process has besides variables."""
    values = vars(process.run)
    position = json.loads(json.dumps(process.position), object_hook=_drawn)
    at_epoch = values.get("epoch_random") or {}
    sections = {
        "progress": {name: values[name] for name in _TRAINING if name in values},
        "data": {"": position},
        "random": values.get("random", {})
        | {f"{name} when the epoch began": x for name, x in at_epoch.items()},
        **_callbacks(values.get("callbacks", [])),
        "objects": values.get("stateful") or values.get("objects") or {},
    }
    if "history" in values:
        sections["history"] = dict(values["history"]["v"])
    return {
        (section, name): value
        for section, inside in sections.items()
        for name, value in inside.items()
    }


def parts_of(
    name: str, value: Encoded, arrays: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """What an encoded value consists of, by path: arrays, and other values.

    Of a list or dictionary, its kind and the names of its parts come first.

    Args:
        name: The path of the value.
        value: The value.
        arrays: What it may refer to.
    """
    tag, content = type(value).__name__, value
    if tagged := isinstance(value, dict) and value.keys() == {"!", "v"}:
        tag, content = value["!"], value["v"]
    if tag == "array":
        yield name, decode(value, arrays)
        return
    if tagged and isinstance(content, dict):
        yield from parts_of(name, content, arrays)
        return
    if tagged and tag == "dict":
        content = {x if isinstance(x, str) else f"[{x}]": item for x, item in content}
    elif isinstance(content, list):
        content = {f"[{index}]": item for index, item in enumerate(content)}
    if not isinstance(content, dict):
        yield name, value
        return
    yield name, f"{tag} of {', '.join(content)}"
    for key, item in content.items():
        dot = "." if name and key and not key.startswith("[") else ""
        yield from parts_of(f"{name}{dot}{key}", item, arrays)


def _drawn(found: JSON) -> JSON:
    """A dict of a position without a seed from which no order has been drawn yet."""
    if found.get("!") == "dict" and ["orders_made", 0] in found["v"]:
        found["v"] = [pair for pair in found["v"] if pair[0] != "own_seed"]
    return found


def _callbacks(callbacks: Sequence[JSON]) -> dict[str, JSON]:
    values, clocks, history = JSON(), JSON(), JSON()
    for callback in callbacks:
        _, name, number = callback["name"].split(".")
        name += f" {number}" if number != "1" else ""
        objects = _objects(callback.get("objects", {}), callback["name"])
        if callback["class"] == _HISTORY:
            history |= {_LOGGED.sub(r"\1", key): x for key, x in objects.items()}
            continue
        special = dict((callback.get("special") or {"v": []})["v"])
        timed = special.keys() & (_FILE if special.keys() == _FILE else _CLOCKS)
        clocks |= {f"{name}.{key}": special.pop(key) for key in sorted(timed)}
        kept = {"state_dict": callback.get("state_dict"), **special, **objects}
        values |= {f"{name}.{key}".rstrip("."): x for key, x in kept.items()}
    return {"callbacks": values, "history": history, CLOCKS: clocks}


def _objects(objects: Entries, name: str) -> JSON:
    """What training changed in a callback, by path; ``+`` marks what training made."""
    found = JSON()
    for home, entry in objects.items():
        path = home.removeprefix(name).removeprefix(".")
        for part, value in entry.items():
            if isinstance(value, dict) and part == "attributes":
                found |= {f"{path}.{k}".removeprefix("."): x for k, x in value.items()}
            else:
                found[path if part == "items" else f"{path} ({part})"] = value
    return found
