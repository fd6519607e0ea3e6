"""The values of a checkpoint other than variables, by section, and which are state.

State is what training continues from. What the run is and what it ran on are not state:
if they made a difference, the state shows it. Nor are clocks, or files that hold times.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from resilient.saving.compare.contents import Contents
from resilient.saving.compare.differences import parts
from resilient.saving.record import SavedState
from resilient.saving.run_json import FitRun, LoopRun, RunJson, encoded
from resilient.serialization import JSON, Encoded
from resilient.serialization.entries import Entries, Entry

NOT_STATE = ("clocks", "settings", "environment")

_HISTORY = "keras.callbacks.History"
# Clock values that Keras's callbacks keep outside their attributes.
_CLOCKS = {"ago", "epoch_began_ago", "files"}
_FILE = {"content"}  # of a ModelCheckpoint, whose file formats hold the time
_TRAINING = ("stop_training", "epoch_logs", "losses", "stopped", "attributes")
_SETTINGS = ("kind", "replicas", "learning_rates", "setup", "setups", "data", "models")
_RANDOM = {"random": "", "epoch_random": "when the epoch began"}


def of_process(process: SavedState[RunJson]) -> dict[str, JSON]:
    """The state of one process: encoded values by name, by section."""
    run, values = process.run, vars(process.run)
    found = {
        "progress": {name: values[name] for name in _TRAINING if name in values},
        "data": {"": _drawn(process.position)},
        "random": {w: values[name] for name, w in _RANDOM.items() if values.get(name)},
    }
    if isinstance(run, FitRun):
        found |= {**_callbacks(run), "objects": run.stateful}
    if isinstance(run, LoopRun):
        found |= {"history": _items(run.history), "objects": run.objects}
    return found


def of_run(contents: Contents) -> dict[str, JSON]:
    """Where the run is, what it is, and what it ran on."""
    run, checkpoint = encoded(contents.processes[0].run), contents.checkpoint
    progress = {"processes": len(contents.processes)} | checkpoint.progress._asdict()
    settings = {name: run[name] for name in _SETTINGS if name in run}
    settings["finished"] = checkpoint.finished
    versions = dict(checkpoint.environment)
    for part in run.get("fingerprint", {}).values():
        settings |= {name: x for name, x in part.items() if name not in versions}
    return {"progress": progress, "settings": settings, "environment": versions}


def _drawn(position: Encoded) -> Encoded:
    """A position without the seeds from which no order has been drawn yet."""
    if isinstance(position, list):
        return [_drawn(item) for item in position]
    if not isinstance(position, dict):
        return position
    found = {key: _drawn(item) for key, item in position.items()}
    if found.get("!") == "dict" and ["orders_made", 0] in found["v"]:
        found["v"] = [pair for pair in found["v"] if pair[0] != "own_seed"]
    return found


def _callbacks(run: FitRun) -> dict[str, JSON]:
    values, clocks, history, names = JSON(), JSON(), JSON(), Counter[str]()
    for index, callback in enumerate(run.callbacks):
        name = callback["class"].rpartition(".")[2]
        names[name] += 1
        name += f" {names[name]}" if names[name] > 1 else ""
        content = _of_objects(callback.get("objects", {}), f"callbacks.{index}")
        if callback["class"] == _HISTORY:
            metrics = _items(content.pop("history", None))
            history |= content | metrics
            continue
        special = callback.get("special")
        special = _items(special, "special") or {"special": special}
        timed = _FILE if special.keys() == _FILE else _CLOCKS
        clocks[name] = {key: special.pop(key) for key in [*special] if key in timed}
        kept = {"state_dict": callback.get("state_dict")}
        values[name] = content | kept | special
    return {"callbacks": values, "history": history, "clocks": clocks}


def _of_objects(objects: Entries, name: str) -> JSON:
    """What training changed in a callback: values by path, new objects inside them."""

    def whole(data: Any) -> Any:
        if isinstance(data, dict):
            if data.get("!") == "ref" and "made" in objects.get(data["v"], {}):
                return _content(objects[data["v"]], whole)
            return {key: whole(item) for key, item in data.items()}
        return [whole(item) for item in data] if isinstance(data, list) else data

    found = JSON()
    for home, entry in objects.items():
        path = home.removeprefix(name).removeprefix(".")
        attributes = entry.get("attributes", {})
        found |= {f"{path}.{k}".strip("."): whole(x) for k, x in attributes.items()}
        if "made" not in entry and not attributes:
            found[path] = _content(entry, whole)
    return found


def _content(entry: Entry, whole: Callable[[Any], Any]) -> Encoded:
    if "items" in entry:
        return whole(entry["items"])
    made = entry.get("content") or entry.get("made") or ("", None)
    return whole(entry["attributes"] if made[0] == "object" else made[1])


def _items(values: Encoded, name: str = "") -> JSON:
    """What an encoded dict has by name; anything else whole, under ``name``."""
    tag, items = parts(values, {})
    if tag == "dict" and items is not None:
        return dict(items)
    return {} if values is None else {name: values}
