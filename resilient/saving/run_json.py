"""What ``run.json`` says: one schema for each kind of run.

Everything of a checkpoint that is neither a tensor nor a position in the data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from msgspec import Meta

from resilient.backends.base import Backend
from resilient.errors import warn_not_exact
from resilient.serialization import JSON, Encoded
from resilient.serialization.changes import CHECKED, CallbackState, require_fit
from resilient.serialization.decoding import decode, outline
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
_HISTORY = "keras.callbacks.History", "history"

_Name = Annotated[str, Meta(max_length=16_384)]


# How a loop counts its steps.
Counting = Literal["loop", "advance"]


@dataclass(frozen=True, kw_only=True)
class RunJson:
    """What all kinds say.

    Attributes:
        variables: Name, path, shape and dtype of each.
        replicas: How many there were.
        tensors: Names of all tensors of this part of the checkpoint.
        arrays: Names of those among them that are no variables.
        allowed: What attempts went on with, though the checkpoint had it otherwise.
    """

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
        stop_training: The model's attribute.
        epoch_logs: Logs of the last epoch that ended.
        random: The random state.
        callbacks: What each callback knew.
        stateful: The user's own objects, by name.
        fingerprint: What the run was.
        learning_rate: That the script gave.
        losses: What was seen of them.
        setup: What was not as the script made it.
        attributes: Those that steps in Python changed; None where steps are traced.
        traces: What was compiled, by size.
        architecture: The model's config; None where it cannot tell.
    """

    progress: JSON
    stop_training: bool
    epoch_logs: Encoded
    random: JSON
    callbacks: list[JSON]
    stateful: JSON
    fingerprint: JSON
    learning_rate: Encoded
    losses: JSON
    setup: JSON
    attributes: Encoded
    traces: JSON
    architecture: str | None


@dataclass(frozen=True, kw_only=True)
class LoopRun(RunJson):
    """A run of the user's own loop.

    Attributes:
        progress: Where it was.
        stopped: Whether it was asked to end.
        counting: How it counts its steps.
        random: The random state.
        epoch_random: The one at the epoch's beginning, for code that runs again there;
            None between epochs, and where the loop has none.
        objects: What each object held beside its variables, by name.
        history: What was logged.
        fingerprint: What the run was.
        data: What the data was; None where the loop draws it by itself.
        setups: What each compiled model trains with, by name.
        models: What each Keras model, layer or optimizer computes, by name.
    """

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


@dataclass(frozen=True, kw_only=True)
class ImportRun(RunJson):
    """The beginning of a run, from what others wrote.

    It holds the weights, the optimizer where its source had one, and seeds where that
    had them. Everything else begins anew with the next fit.

    Attributes:
        source: The path of that.
        unknown: What the source does not say, for people.
    """

    source: str
    unknown: list[str]

    def warn(self) -> None:
        """Name what the import could not know."""
        begin_anew = f"{self.source} does not contain these, so they start from scratch"
        warn_not_exact(begin_anew, self.unknown)


KINDS: Mapping[str, type[RunJson]] = {
    "fit": FitRun,
    "loop": LoopRun,
    "variables": VariablesRun,
    "import": ImportRun,
}


@dataclass(frozen=True)
class _Variable:
    name: _Name
    path: _Name
    shape: Annotated[list[Count], Meta(max_length=64)]
    dtype: Annotated[str, Meta(max_length=100)]


@dataclass(frozen=True)
class _Allowed:
    """Where it went on, the name in ``allow``, and the difference in words."""

    step: Count
    of: Annotated[str, Meta(max_length=100)]
    line: Annotated[str, Meta(max_length=2000)]


@dataclass(frozen=True)
class _Fingerprint:
    identity: JSON
    settings: JSON
    determinism: JSON


class _Setup(TypedDict, total=False):
    script: JSON
    now: JSON
    then: JSON


@dataclass(frozen=True)
class _Inside:
    """What is inside of fields that are used as plain JSON."""

    variables: list[_Variable] = field(default_factory=list)
    allowed: Annotated[list[_Allowed], Meta(max_length=1000)] = field(
        default_factory=list
    )
    progress: SavedProgress | None = None
    fingerprint: _Fingerprint | None = None
    models: dict[str, _Fingerprint] = field(default_factory=dict)
    callbacks: list[CallbackState] = field(default_factory=list)
    random: RandomState | None = None
    epoch_random: RandomState | None = None
    losses: SavedLosses | None = None
    traces: dict[str, SavedShapes] = field(default_factory=dict)
    setup: _Setup = field(default_factory=_Setup)
    setups: dict[str, _Setup] = field(default_factory=dict)


@dataclass(frozen=True)
class _Decoded:
    """What is inside of fields that are encoded."""

    learning_rate: float | None = None
    attributes: dict[str, Any] | None = None
    epoch_logs: dict[Any, Any] | None = None  # a user may log under any name


def encoded(run: RunJson) -> JSON:
    """A run as ``run.json`` has it."""
    kind = next(name for name, cls in KINDS.items() if type(run) is cls)
    return {_KIND: kind, **to_json(run)}


def decoded(data: object) -> RunJson:
    """The run that a ``run.json`` tells of.

    Raises:
        SchemaError: It is none.
    """
    kind = data.get(_KIND) if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(kind, str) or kind not in KINDS:
        raise SchemaError(f"kind is {kind!r}, not one of {', '.join(KINDS)}")
    rest = {name: item for name, item in data.items() if name != _KIND}
    run = from_json(KINDS[kind], rest)
    inside = from_json(_Inside, rest)
    if len({each.name for each in inside.variables}) < len(inside.variables):
        raise SchemaError("variables: it lists one several times")
    return run


def require_restorable(
    run: RunJson, backend: Backend, arrays: Mapping[str, np.ndarray]
) -> None:
    """Raise, of any class, where a restore would be the first to see what is malformed.

    By then it has begun, and another checkpoint cannot be used any more.

    Args:
        run: Of which every encoded value is well-formed.
        backend: That which trains.
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
        for callback in run.callbacks:
            for path, change in callback.get("changes", {}).items():
                if change["kind"] in CHECKED:
                    require_fit(path, change, decode(change["data"], arrays))
                    continue
                plain = outline(change["data"], arrays)
                if (callback["class"], change["key"]) == _HISTORY:
                    from_json(dict[Any, list[Any]], plain)


def _require_history(history: Any) -> None:
    """Raise MalformedError unless it has the steps and the numbers of each name."""
    with taking("the history"):
        for name, (steps, values) in history.items():
            # No ranges: short in a file, and endless in memory.
            vector(steps, "int64", f"the steps of {name}")
            vector(values, "float64", f"the numbers of {name}")
            if not isinstance(name, str) or not 0 < len(steps) == len(values):
                raise ValueError("not a number for each step")
