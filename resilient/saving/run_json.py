"""The schema of ``run.json``, one for each kind of run.

It holds everything in a checkpoint that is neither a tensor nor a position in the data.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, TypedDict

import numpy as np
from msgspec import Meta, Struct

from resilient.backends.base import Backend
from resilient.errors import warn_not_exact
from resilient.serialization import JSON, CallbackState, Encoded, Entries
from resilient.serialization.decoding import outline
from resilient.serialization.schema import (
    Count,
    SavedLosses,
    SavedProgress,
    SavedShapes,
    SchemaError,
    from_json,
    taking,
    to_json,
    vector,
)
from resilient.state import rng
from resilient.state.rng import RandomState

_KIND = "kind"
_HISTORY = "keras.callbacks.History"
_OF_A_NAME = re.compile(r"\.history\[[^\[\]]*\]\++$")  # homes of what is logged

_Name = Annotated[str, Meta(max_length=16_384)]


# How a loop counts its steps.
Counting = Literal["loop", "advance"]


@dataclass(frozen=True, kw_only=True)
class RunJson:
    """The fields of all kinds.

    Attributes:
        kind: Its name in ``run.json``.
        saved_by: Who saves it, in words.
        variables: Name, path, shape and dtype of each.
        replicas: The number of replicas.
        tensors: Names of all tensors of this part of the checkpoint.
        arrays: Names of those that are not variables.
        allowed: Differences from a checkpoint that attempts accepted.
    """

    kind: ClassVar[str]
    saved_by: ClassVar[str]

    variables: list[JSON] = field(default_factory=list)
    replicas: Annotated[int, Meta(ge=1, le=100_000)] = 1
    tensors: list[_Name] = field(default_factory=list)
    arrays: list[_Name] = field(default_factory=list)
    allowed: list[JSON] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FitRun(RunJson):
    """A run of Keras's ``fit``.

    Attributes:
        progress: Where training was.
        stop_training: The model's attribute of that name.
        epoch_logs: Logs of the last epoch that ended.
        random: The random state.
        callbacks: The state of each callback.
        stateful: The user's own objects, by name.
        fingerprint: The identity of the run.
        learning_rates: The script's learning rates, by name.
        losses: What the loss watch has seen.
        setup: The training setup, where it differs from the script's.
        attributes: What else training changed in Python objects, by home.
        gradients: Gradients that a step of the user's leaves on PyTorch.
        traces: What was compiled, by batch size.
        architecture: The model's config; None if it has none.
    """

    kind = "fit"
    saved_by = "resilient.fit"

    progress: JSON
    stop_training: bool
    epoch_logs: Encoded
    random: JSON
    callbacks: list[JSON]
    stateful: JSON
    fingerprint: JSON
    learning_rates: Encoded
    losses: JSON
    setup: JSON
    attributes: JSON
    gradients: JSON
    traces: JSON
    architecture: str | None


@dataclass(frozen=True, kw_only=True)
class LoopRun(RunJson):
    """A run of a custom training loop.

    Attributes:
        progress: Where it was.
        stopped: Whether the loop ended the run.
        counting: How it counts its steps.
        random: The random state.
        epoch_random: The one at the start of the epoch, for code that runs again there;
            None between epochs, and if the loop has none.
        objects: The state of each object apart from its variables, by name.
        history: What was logged.
        fingerprint: The identity of the run.
        data: The identity of the data; None if the loop draws it itself.
        setups: The training setup of each compiled model, by name.
        models: The configuration of each Keras model, layer or optimizer, by name.
    """

    kind = "loop"
    saved_by = "resilient.Run"

    progress: JSON
    stopped: bool
    counting: Counting | None
    random: JSON
    objects: JSON
    history: Encoded
    fingerprint: JSON
    data: JSON | None
    setups: JSON
    models: JSON = field(default_factory=dict)
    epoch_random: JSON | None = None


@dataclass(frozen=True, kw_only=True)
class VariablesRun(RunJson):
    """Variables alone, which ``Checkpoints`` saved."""

    kind = "variables"
    saved_by = "resilient.Checkpoints"


@dataclass(frozen=True, kw_only=True)
class ImportRun(RunJson):
    """The start of a run, imported from another library's files.

    It holds the weights, and the optimizer and seeds if the source has them. Everything
    else starts fresh with the next fit.

    Attributes:
        source: The path of the source.
        unknown: What the source does not contain, in words.
    """

    kind = "import"
    saved_by = "an import"

    source: str
    unknown: list[str]

    def warn(self) -> None:
        """Warn about what the import could not know."""
        begin_anew = f"{self.source} does not contain these, so they start from scratch"
        warn_not_exact(begin_anew, self.unknown)


KINDS: Mapping[str, type[RunJson]] = {
    each.kind: each for each in (FitRun, LoopRun, VariablesRun, ImportRun)
}


class _Variable(Struct, gc=False):
    name: _Name
    path: _Name
    shape: Annotated[list[Count], Meta(max_length=64)]
    dtype: Annotated[str, Meta(max_length=100)]


@dataclass(frozen=True)
class _Allowed:
    """Where it continued, the name in ``allow``, and the difference in words."""

    step: Count
    of: Annotated[str, Meta(max_length=100)]
    line: Annotated[str, Meta(max_length=2000)]


class _Identity(TypedDict, total=False):
    objects: JSON  # of a loop: the kind of each


@dataclass(frozen=True)
class _Fingerprint:
    identity: _Identity
    settings: JSON
    determinism: JSON


class _Setup(TypedDict, total=False):
    script: JSON
    changed: dict[str, Annotated[str, Meta(max_length=2000)]]


@dataclass(frozen=True)
class _Inside:
    """The contents of fields that are used as plain JSON."""

    variables: list[_Variable] = field(default_factory=list)
    allowed: Annotated[list[_Allowed], Meta(max_length=1000)] = field(
        default_factory=list
    )
    progress: SavedProgress | None = None
    fingerprint: _Fingerprint | None = None
    models: dict[str, _Fingerprint] = field(default_factory=dict)
    callbacks: list[CallbackState] = field(default_factory=list)
    attributes: Entries = field(default_factory=dict)
    random: RandomState | None = None
    epoch_random: RandomState | None = None
    losses: SavedLosses | None = None
    traces: dict[str, SavedShapes] = field(default_factory=dict)
    setup: _Setup = field(default_factory=_Setup)
    setups: dict[str, _Setup] = field(default_factory=dict)


@dataclass(frozen=True)
class _Decoded:
    """The contents of encoded fields."""

    learning_rates: dict[str, float] = field(default_factory=dict)
    epoch_logs: dict[str, float] | None = None


def encoded(run: RunJson) -> JSON:
    """A run as ``run.json`` has it."""
    return {_KIND: run.kind, **to_json(run)}


def decoded(data: object) -> RunJson:
    """Parse ``run.json``.

    Raises:
        SchemaError: It is not valid.
    """
    kind = data.get(_KIND) if isinstance(data, dict) else None
    cls = KINDS.get(str(kind))
    if cls is None:
        raise SchemaError(f"kind is {kind!r}, not one of {', '.join(KINDS)}")
    run, inside = from_json(cls, data), from_json(_Inside, data)
    if len({each.name for each in inside.variables}) < len(inside.variables):
        raise SchemaError("variables: it lists one several times")
    return run


def require_restorable(
    run: RunJson, backend: Backend, arrays: Mapping[str, np.ndarray]
) -> None:
    """Raise (any class) for malformed values that only a restore would notice.

    By then the restore has begun, and no other checkpoint can be used.

    Args:
        run: The run, whose encoded values are all well-formed.
        backend: The training backend.
        arrays: The larger arrays.
    """
    if isinstance(run, FitRun | LoopRun):
        rng.check(backend, run.random)
    if isinstance(run, LoopRun):
        if run.epoch_random is not None:
            rng.check(backend, run.epoch_random)
        _require_history(outline(run.history, arrays))
    if isinstance(run, FitRun):
        names = (field.name for field in fields(_Decoded))
        from_json(_Decoded, {n: outline(getattr(run, n), arrays) for n in names})
        _require_items(run.attributes, arrays)
        for callback in run.callbacks:
            objects = callback.get("objects", {})
            _require_items(objects, arrays)
            if callback["class"] == _HISTORY:
                _require_lists(objects, arrays)


def _require_items(objects: Entries, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise SchemaError unless items are lists or dictionaries."""
    for entry in objects.values():
        items = outline(entry.get("items", []), arrays)
        if not isinstance(items, list | dict):
            raise SchemaError("items that are no list")


def _require_lists(objects: Entries, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise SchemaError unless Keras's history has a list for each name."""
    for home, entry in objects.items():
        if home.rstrip("+").endswith(".history") and "items" in entry:
            from_json(dict[Any, list[Any] | None], outline(entry["items"], arrays))
        elif _OF_A_NAME.search(home) and entry.get("made", ("list",))[0] != "list":
            raise SchemaError(f"{home} is no list")


def _require_history(history: Any) -> None:
    """Raise MalformedError unless it has steps and numbers for each name."""
    with taking("the history"):
        for name, (steps, values) in history.items():
            # No ranges, which are short in a file and endless in memory.
            vector(steps, "int64", f"the steps of {name}")
            vector(values, "float64", f"the numbers of {name}")
            if not isinstance(name, str) or not 0 < len(steps) == len(values):
                raise ValueError("not a number for each step")
