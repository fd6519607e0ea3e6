"""The values of a checkpoint other than tensors, by section, and which are state.

State is what training continues from. What the run is and what it ran on are not state:
if they made a difference, the state shows it. Nor are clocks, or files that hold times.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from resilient.saving.compare.contents import Contents, ProcessContents
from resilient.saving.compare.values import unpacked
from resilient.saving.run_json import FitRun, ImportRun, LoopRun, RunJson, encoded
from resilient.serialization import JSON, Encoded
from resilient.serialization.decoding import decode, outline
from resilient.serialization.position import Positions
from resilient.serialization.schema import from_json

STATE = ("progress", "data", "random", "callbacks", "history", "objects")
NOT_STATE = ("clocks", "settings", "environment")
SECTIONS = (*STATE, *NOT_STATE)

_HISTORY = "keras.callbacks.History"
# Clock values that Keras's callbacks keep outside their attributes.
_CLOCKS = {"ago", "epoch_began_ago", "files"}
_FILE = {"content"}  # of a ModelCheckpoint, whose file formats hold the time
_WORD = (1 << 32) - 1


class Section(NamedTuple):
    """Values of one kind.

    Attributes:
        name: One of ``SECTIONS``.
        values: The encoded values, by name.
    """

    name: str
    values: JSON


def of_process(
    process: ProcessContents, *, elsewhere: bool, listed: bool = True
) -> Iterator[Section]:
    """The state of one process.

    Args:
        process: What the process saved.
        listed: Whether to list each number of a history. If not, long ones are only
            named, and are in ``process.arrays``.
        elsewhere: Whether the other checkpoint is from another backend, which draws
            random numbers and orders in its own way.
    """
    run = process.run
    yield Section("progress", _of_training(run, elsewhere))
    yield Section("data", _position(process, elsewhere))
    if isinstance(run, FitRun | LoopRun):
        random = {"": run.random}
        if isinstance(run, LoopRun) and run.epoch_random is not None:
            random["when the epoch began"] = run.epoch_random
        yield Section("random", _random(random, elsewhere))
    if isinstance(run, FitRun):
        yield from _callbacks(process, run, listed)
        yield Section("objects", run.stateful)
    if isinstance(run, LoopRun):
        of_loop = _of_loop(run.history, process) if listed else _items(run.history)
        yield Section("history", of_loop)
        yield Section("objects", run.objects)


def of_run(contents: Contents) -> Iterator[Section]:
    """What the run is, and what it ran on."""
    run, checkpoint = contents.run, contents.checkpoint
    versions = dict(checkpoint.environment)
    settings: JSON = {
        "saved by": encoded(run)["kind"],
        "finished": checkpoint.finished,
        "replicas": run.replicas,
    }
    if isinstance(run, FitRun | LoopRun):
        facts = run.fingerprint
        for each in ("identity", "settings", "determinism"):
            settings |= {k: v for k, v in facts[each].items() if k not in versions}
    if isinstance(run, FitRun):
        settings |= {"learning rate": run.learning_rate, "changed": run.setup}
    if isinstance(run, LoopRun):
        settings |= {**(run.data or {}), "models": run.models, "changed": run.setups}
    if isinstance(run, ImportRun):
        settings |= {"imported from": run.source, "unknown": run.unknown}
    yield Section("settings", settings)
    yield Section("environment", versions)


def _of_training(run: RunJson, elsewhere: bool) -> JSON:
    if isinstance(run, FitRun):
        found = {
            "stop_training": run.stop_training,
            "logs of the last epoch": run.epoch_logs,
            "losses seen": run.losses,
        }
        # Those changed by steps in Python, which other backends trace.
        return found if elsewhere else found | {"attributes": run.attributes}
    return {"stopped": run.stopped} if isinstance(run, LoopRun) else {}


def _position(process: ProcessContents, elsewhere: bool) -> JSON:
    if not elsewhere:
        return {"": _inside(process.position, ("x", "validation_data"))}
    plain = from_json(Positions, outline(process.position, process.arrays))
    if plain.x is None:
        return {}
    return {
        "batches": plain.x.data.drawn,
        "epochs": plain.x.data.epochs,
        "batches of an epoch": plain.x.num_batches,
    }


def _inside(position: Encoded, keys: tuple[str, ...]) -> Encoded:
    """A position without the seeds from which no order has been drawn yet."""
    if not isinstance(position, dict) or position.get("!") != "dict":
        return position
    pairs = position["v"]
    if ["orders_made", 0] in pairs:
        pairs = [pair for pair in pairs if pair[0] != "own_seed"]
    inner = ("data",) if "data" not in keys else ("source",)
    pairs = [
        [key, _inside(item, inner)] if key in keys else [key, item]
        for key, item in pairs
    ]
    return {**position, "v": pairs}


def _random(states: JSON, elsewhere: bool) -> JSON:
    if not elsewhere:
        return states
    return {
        name: {
            "python": state["python"],
            "numpy": state["numpy"],
            "keras": state["keras"] and [n & _WORD for n in state["keras"]],
        }
        for name, state in states.items()
    }


def _callbacks(
    process: ProcessContents, run: FitRun, listed: bool
) -> Iterator[Section]:
    values, clocks, history, names = JSON(), JSON(), JSON(), Counter[str]()
    for index, callback in enumerate(run.callbacks):
        name = callback["class"].rpartition(".")[2]
        names[name] += 1
        name += f" {names[name]}" if names[name] > 1 else ""
        begin = f"callbacks.{index}."
        content = {
            path.removeprefix(begin): change["data"]
            for path, change in callback.get("changes", {}).items()
        }
        if callback["class"] == _HISTORY:
            found = _of_fit(content)
            if listed:
                found = {n: unpacked(v, process.arrays) for n, v in found.items()}
            history |= found
            continue
        content |= {
            k: callback[k] for k in ("state_dict", "deleted") if callback.get(k)
        }
        ours, of_clock = _split(callback.get("special"))
        values[name] = content | ours
        clocks |= {name: of_clock} if of_clock else {}
    yield Section("callbacks", values)
    yield Section("history", history)
    yield Section("clocks", clocks)


def _split(special: Encoded) -> tuple[JSON, JSON]:
    """Split what a callback keeps outside its attributes into state and clock values.

    A file counts as a clock value: model formats hold the time of writing.
    """
    if not isinstance(special, dict) or special.get("!") != "dict":
        return ({} if special is None else {"special": special}), {}
    pairs = {key: item for key, item in special["v"] if isinstance(key, str)}
    of_clock = pairs.keys() if pairs.keys() == _FILE else pairs.keys() & _CLOCKS
    clocks = {key: pairs[key] for key in pairs if key in of_clock}
    return {key: pairs[key] for key in pairs if key not in of_clock}, clocks


def _of_fit(changes: JSON) -> JSON:
    """The epochs and each metric's values from a History callback."""
    metrics = changes.pop("history", None)
    return {**changes, **_items(metrics)}


def _items(values: Encoded) -> JSON:
    """What an encoded dict has by name."""
    if isinstance(values, dict) and values.get("!") == "dict":
        return {key: item for key, item in values["v"] if isinstance(key, str)}
    return {}


def _of_loop(history: Encoded, process: ProcessContents) -> JSON:
    """Each metric's value at each step."""
    found = decode(history, process.arrays)
    return {
        str(name): {
            f"[{step}]": value
            for step, value in zip(steps.tolist(), values.tolist(), strict=True)
        }
        for name, (steps, values) in found.items()
    }
