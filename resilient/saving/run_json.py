"""The schema of ``run.json``, one for each kind of run.

It holds everything in a checkpoint that is neither a tensor nor a position in the data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from resilient.errors import warn_not_exact
from resilient.serialization import JSON, Encoded
from resilient.serialization.schema import SchemaError, from_json, to_json

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
        arrays: Names of this part's tensors that are not variables.
        allowed: Differences from a checkpoint that attempts accepted.
    """

    kind: ClassVar[str]
    saved_by: ClassVar[str]

    variables: list[JSON] = field(default_factory=list)
    replicas: int = 1
    arrays: list[str] = field(default_factory=list)
    allowed: list[JSON] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FitRun(RunJson):
    """A run of Keras's ``fit``.

    Attributes:
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
    """

    kind = "fit"
    saved_by = "resilient.fit"

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


@dataclass(frozen=True, kw_only=True)
class LoopRun(RunJson):
    """A run of a custom training loop.

    Attributes:
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


def encoded(run: RunJson) -> JSON:
    """A run as ``run.json`` has it."""
    return {"kind": run.kind, **to_json(run)}


def decoded(data: object) -> RunJson:
    """Parse ``run.json``.

    Raises:
        SchemaError: It is not valid.
    """
    kind = data.get("kind") if isinstance(data, dict) else None
    cls = KINDS.get(str(kind))
    if cls is None:
        raise SchemaError(f"kind is {kind!r}, not one of {', '.join(KINDS)}")
    return from_json(cls, data)
