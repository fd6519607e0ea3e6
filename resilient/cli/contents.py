"""What ``resilient show`` says about a checkpoint, as JSON and in words.

``run.json`` is read by its schema, without Keras and without the tensors.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import xxhash

from resilient.cli.style import (
    BAD,
    Rows,
    epoch_and_batch,
    in_terminal,
    say,
    when,
)
from resilient.display import metrics, size
from resilient.errors import CorruptCheckpointError
from resilient.saving.record import malformed
from resilient.saving.run_json import FitRun, ImportRun, LoopRun, RunJson, decoded
from resilient.serialization import JSON
from resilient.serialization.json_values import decode
from resilient.serialization.schema import Count, from_json, parse, strict
from resilient.storage.checkpoint import Checkpoint

_RUN = "run.json"
_SHOWN = 1000  # variables
_MOST = 2**63  # bytes; anything larger is not ours
_NOT_MODEL = ("optimizer", "metrics")


@dataclass(frozen=True)
class _Identity:
    """The parts of the fingerprint that ``show`` uses."""

    model: str | None = None
    optimizer: list[str] = field(default_factory=list)
    steps_per_epoch: Count | None = None
    objects: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Lengths:
    """The parts that give the number of batches in an epoch."""

    samples: Count | None = None
    batch_size: Count | None = None
    steps_per_epoch: Count | None = None


@dataclass(frozen=True)
class _Variable:
    """The parts of a variable that ``show`` uses."""

    name: str
    path: str
    shape: list[Count]
    dtype: str


@dataclass(frozen=True)
class _Allowed:
    """The parts of a change that was made on purpose."""

    step: Count
    line: str


def look(checkpoint: Checkpoint) -> tuple[JSON, bool]:
    """What a checkpoint says about its run, and whether the file is intact."""
    nothing = {"run": None, "run_problem": None}
    try:
        raw = checkpoint.content(_RUN)
    except CorruptCheckpointError as error:
        return nothing | {"run_problem": error.problem}, False
    if xxhash.xxh3_128_hexdigest(raw) != checkpoint.files[_RUN].xxh3_128:
        why = f"{_RUN} does not match its checksum"
        return nothing | {"run_problem": why}, False
    try:
        with malformed(_RUN):
            data = parse(raw)
            facts = _facts(decoded(data)) | {"kind": data["kind"]}
            return {"run": facts, "run_problem": None}, True
    except CorruptCheckpointError as error:
        why = f"{error.problem} {error.received or ''}".strip()
        return nothing | {"run_problem": why}, True


def _facts(run: RunJson) -> JSON:
    fingerprint = getattr(run, "fingerprint", {})
    identity = fingerprint.get("identity", {})
    known = from_json(_Identity, identity)
    from_json(list[_Allowed], run.allowed)
    of_loop = run.data if isinstance(run, LoopRun) else None
    data = {
        name.removeprefix("data "): value
        for name, value in (identity if of_loop is None else of_loop).items()
        if name.startswith("data ")
    }
    rates = decode(run.learning_rates, {}) if isinstance(run, FitRun) else {}
    rates = from_json(dict[str, float], rates)
    callbacks = run.callbacks if isinstance(run, FitRun) else []
    stateful = run.stateful if isinstance(run, FitRun) else {}
    return {
        "model": known.model,
        "variables": list(map(_variable, run.variables)),
        "optimizer": known.optimizer,
        "learning_rates": {name: strict(rate) for name, rate in rates.items()},
        "data": data,
        "batches_per_epoch": _batches(data, known),
        "callbacks": [each["class"] for each in callbacks],
        "objects": {**dict.fromkeys(stateful, "stateful object"), **known.objects},
        "imported_from": run.source if isinstance(run, ImportRun) else None,
        "allowed": run.allowed,
    }


def _variable(saved: JSON) -> JSON:
    known = from_json(_Variable, saved)
    nbytes = _nbytes(known.shape, known.dtype)
    return {"group": known.name.partition(".")[0], **saved, "nbytes": nbytes}


def _nbytes(shape: list[int], dtype: str) -> int | None:
    """The size of a variable; None if its type does not tell."""
    bits = re.search(r"(?<=[a-z])\d{1,3}(?!\d)", dtype.replace("bool", "bool8"))
    nbytes = math.prod(shape) * int(bits[0]) // 8 if bits else _MOST
    return nbytes if nbytes < _MOST else None


def _batches(data: JSON, known: _Identity) -> int | None:
    lengths = from_json(_Lengths, data)
    steps = known.steps_per_epoch or lengths.steps_per_epoch
    if steps is None and lengths.samples and lengths.batch_size:
        return math.ceil(lengths.samples / lengths.batch_size)
    return steps


def show(data: JSON, *, files: bool) -> None:
    """Print what one checkpoint holds.

    Args:
        data: What ``look`` found, plus the manifest's contents.
        files: Whether to list the files.
    """
    epoch, batch = epoch_and_batch(data)
    place = f"epoch {epoch}, batch {batch}"
    if batch == "end":
        place = f"end of epoch {epoch}"
    saved = when(data["created"])
    saved += f" ({data['created']})" if in_terminal() else ""
    say(data["path"], "bold")
    state = "finished" if data["finished"] else "not finished"
    say(f"step {data['step']:,} ({place}), {state}")
    say(f"saved {saved}, {size(data['nbytes'])}")
    for problem in data["problems"]:
        say(f"damaged: {problem}", BAD)
    say(f"metrics: {metrics(data['metrics']) or 'none'}")
    if data["repeated"]:
        counts = ", ".join(f"{count:,}" for count in data["repeated"])
        say(f"batches that repeated bit for bit after each resume: {counts}")
    for name, version in data["environment"].items():
        say(f"{name}: {version}")
    if data["run"] is None:
        say(f"Its contents cannot be shown: {data['run_problem']}", BAD)
    else:
        _show_run(data["run"], data)
    if files:
        rows = Rows("file", "size", "xxh3_128")
        for name, record in data["files"].items():
            rows.add(name, size(record["size"]), record["xxh3_128"])
        rows.print()


def _show_run(run: JSON, data: JSON) -> None:
    trained = [v for v in run["variables"] if v["group"] == "trainable"]
    count = sum(math.prod(v["shape"]) for v in trained)
    model = f"model: {run['model']}, " if run["model"] else ""
    if trained:
        say(f"{model}{count:,} trainable parameters")
    if run["optimizer"]:
        wrapped = " of ".join(run["optimizer"])
        say(f"optimizer: {wrapped}{_held(run, 'optimizer')}")
    rates = {name: f"{float(x):.6g}" for name, x in run["learning_rates"].items()}
    if run["optimizer"] and not rates:
        rates = {"learning rate": "a schedule"}
    for name, rate in rates.items():
        say(f"{name}: {rate} (set by the script)")
    if run["data"]:
        facts = (_fact(k, x) for k, x in run["data"].items() if x is not None)
        say(f"data: {', '.join(facts)}")
        say(f"data position: {_position(data, run['batches_per_epoch'])}")
    if run["callbacks"]:
        say(f"callbacks: {', '.join(map(_class, run['callbacks']))}")
    if run["objects"]:
        objects = (f"{name} ({kind})" for name, kind in run["objects"].items())
        say(f"objects: {', '.join(objects)}")
    if run["imported_from"] is not None:
        say(f"imported from: {run['imported_from']}")
    for change in run["allowed"]:
        say(f"changed on purpose at step {change['step']:,}: {change['line']}")
    _show_variables(run)


def _show_variables(run: JSON) -> None:
    """A line for each variable of the model, grouped by layer."""
    layers: dict[str, list[JSON]] = {}
    found = [v for v in run["variables"] if v["group"] not in _NOT_MODEL]
    for variable in found[:_SHOWN]:
        layers.setdefault(_layer(variable), []).append(variable)
    rows = Rows("layer", "variable", "shape", "dtype", "size")
    for layer, variables in layers.items():
        for variable in variables:
            shape, dtype = f"({_numbers(variable['shape'])})", variable["dtype"]
            name = variable["path"].rpartition("/")[2]
            first = layer if variable is variables[0] else ""
            rows.add(first, name, shape, dtype, size(variable["nbytes"]))
    if found:
        rows.print()
    if len(found) > _SHOWN:
        say(f"and {len(found) - _SHOWN:,} more, which --json lists")


def _layer(variable: JSON) -> str:
    """The parent in the variable's path; in a loop, perhaps an object's name."""
    above, _, _ = variable["path"].rpartition("/")
    of_object = variable["name"].split(".")[1:2]
    return above or " ".join(of_object)


def _held(run: JSON, group: str) -> str:
    """How many variables a group has, and their size."""
    sizes = [v["nbytes"] for v in run["variables"] if v["group"] == group]
    known = sum(nbytes for nbytes in sizes if nbytes is not None)
    return f", {len(sizes):,} variables, {size(known)}" if sizes else ""


def _position(data: JSON, batches: int | None) -> str:
    epoch, batch = epoch_and_batch(data)
    if batch == "end":
        return f"end of epoch {epoch}"
    if batch == "0":
        return f"start of epoch {epoch}"
    return (
        f"after batch {batch}{f' of {batches:,}' if batches else ''} in epoch {epoch}"
    )


def _fact(name: str, value: Any) -> str:
    return _short(value) if name == "kind" else f"{name} {_short(value)}"


def _short(value: Any) -> str:
    """A fact about data, without checksums of its content."""
    match value:
        case {"shape": list(shape), "dtype": str(dtype)}:
            text = f"({_numbers(shape)}) {dtype}"
        case bool():
            text = "yes" if value else "no"
        case int():
            text = f"{value:,}"
        case _:
            text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _numbers(shape: list[Any]) -> str:
    return ", ".join(map(str, shape))


def _class(name: str) -> str:
    return name.rpartition(".")[2]
