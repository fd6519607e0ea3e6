"""Sets the initial weights of a new run, from another run or from a file.

It sets all weights of the model, or those of some layers. The optimizer, the data and
the random state are the new run's own. Nothing is set before everything has been
compared.

Importing this module loads neither Keras nor a backend.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient.distributed.group import Group
from resilient.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    NotSupportedError,
    message,
    printable,
)
from resilient.saving import record
from resilient.saving.choose import log_fall_back
from resilient.saving.run_json import LoopRun
from resilient.storage import layout, scratch
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.manifest import ManifestError
from resilient.storage.remote.address import Address

if TYPE_CHECKING:
    import keras

    from resilient.convert.overlap import Pairs, Weight
    from resilient.state.variables import Leaf

_Source = str | os.PathLike[str]

_NAMED = 20  # of what may be long, that a line or an event names
_SEED = "seed_generator_state"  # how Keras calls what is a variable and no weight


@dataclass(frozen=True)
class StartFrom:
    """What a new run should start with.

    Attributes:
        source: A run's directory, one of its checkpoints, or what can be imported.
        layers: Matches the full paths of the weights to take; None: all.
    """

    source: Path
    layers: re.Pattern[str] | None

    @classmethod
    def checked(cls, source: _Source | None, layers: str | None) -> "StartFrom | None":
        """Validate the arguments ``start_from`` and ``start_layers``.

        Raises:
            TypeError: One has the wrong type.
            ValueError: One has an invalid value.
            NotSupportedError: The source is in an object store.
        """
        if layers is not None and not isinstance(layers, str):
            what = "`start_layers` must be a regular expression (a string)."
            raise TypeError(message(what, received=repr(layers)))
        if source is None:
            if layers is not None:
                what = "`start_layers` must be used together with `start_from`."
                raise ValueError(message(what, received=repr(layers)))
            return None
        if not isinstance(source, str | os.PathLike):
            what = "`start_from` must be the path of a directory or a file."
            raise TypeError(message(what, received=repr(source)))
        source = scratch.read_instead_of(source)
        if Address.of(source) is not None:
            raise NotSupportedError(
                "`start_from` must be a local path, not an address.",
                received=os.fspath(source),
                hint="Export the weights of that run (`resilient export ADDRESS --to "
                "model.safetensors`), and start from the file.",
            )
        try:
            pattern = None if layers is None else re.compile(layers)
        except re.error as error:
            what = f"`start_layers` must be a regular expression: {error}."
            raise ValueError(message(what, received=repr(layers))) from None
        return cls(Path(os.fspath(source)).absolute(), pattern)


def checked_starts(
    source: _Source | Mapping[str, _Source] | None,
    layers: str | None,
    models: Collection[str],
    state: Any,
) -> dict[str, StartFrom]:
    """The initial weights of each model, by the name under which it was passed.

    Args:
        source: For the only model, or a dict by name.
        layers: ``start_layers``, for all of them.
        models: Names of the Keras models and layers.
        state: The ``state`` of ``Run``, if any.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: It does not say which model is meant.
        NotSupportedError: The loop trains copies of the weights.
    """
    named: Mapping[str, _Source | None]
    if isinstance(source, Mapping):
        named = source
    else:
        StartFrom.checked(source, layers)  # first of all
        named = dict.fromkeys(models, source)
        if source is not None and len(models) != 1:
            raise ValueError(
                message(
                    "`start_from` must say which model starts with which weights, "
                    "unless Run is given exactly one Keras model.",
                    received=f"start_from={source!r}, models: {_listed(models)}",
                    hint='Pass start_from={"name": path}, with the name of a Keras '
                    "model or layer that you pass to Run.",
                )
            )
    if unknown := [name for name in named if name not in models]:
        raise ValueError(
            message(
                "`start_from` names a model that was not passed to Run.",
                received=repr(unknown[0]),
                hint=f"The models are: {_listed(models)}.",
            )
        )
    asked = {name: StartFrom.checked(each, layers) for name, each in named.items()}
    starts = {name: each for name, each in asked.items() if each is not None}
    if starts and state is not None:
        raise NotSupportedError(
            "`start_from` sets the weights of models, but with `state` the loop "
            "trains copies of them.",
            received=f"start_from={source!r}, and a state",
            hint="Write the weights to a file with `resilient export`, load it into "
            "the model, and then make the state.",
        )
    return starts


def _listed(names: Collection[str]) -> str:
    return ", ".join(names) or "none"


@dataclass(frozen=True)
class Started:
    """What a run started with.

    Attributes:
        source: The origin of the weights.
        taken: How many of the model's weights were set.
        count: How many the model has.
        left: Requested weights that were not set, and why.
    """

    source: Path
    taken: int
    count: int
    left: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        left = self.left[:_NAMED]
        told = {"taken": self.taken, "count": self.count, "left": left}
        return {"source": os.fspath(self.source), **told}

    def __str__(self) -> str:
        line = f"Starting with {self.taken} of {self.count} weights from {self.source}"
        if not self.left:
            return line
        more = len(self.left) - _NAMED
        told = "; ".join(self.left[:_NAMED]) + (f"; {more} more" if more > 0 else "")
        return f"{line}. Not taken: {told}"


def start(
    wanted: "Sequence[tuple[StartFrom, keras.layers.Layer, str]]", group: Group
) -> list[Started]:
    """Set the requested weights, the same in every process.

    Args:
        wanted: What each model is to begin with, the model, and its name in a loop: of
            a loop that has a model of this name, it gets the weights of that one.
        group: These processes.

    Raises:
        CheckpointMismatchError: All are to be set and some cannot, or none can. Nothing
            was changed.
        CorruptCheckpointError: No checkpoint of the run is intact.
        FileNotFoundError: Nothing is there.
        NotSupportedError: It cannot be read, or the model is not built.
    """
    chosen = [_chosen(*each, group) for each in wanted]
    for pairs, _ in chosen:
        _set(pairs)
    return [started for _, started in chosen]


def _chosen(
    asked: StartFrom, model: "keras.layers.Layer", name: str, group: Group
) -> "tuple[Pairs, Started]":
    from resilient.convert import overlap

    ours = _weights(model)
    steps = _steps(asked.source)
    if steps:
        source, theirs = _of_run(steps, name, group)
        found = overlap.of_weights(source, theirs, ours, asked.layers)
    else:
        source, found = asked.source, _of_file(asked, model, ours, group)
    pairs, left = found
    return pairs, Started(source, len(pairs), len(ours), left)


def _set(pairs: "Pairs") -> None:
    from resilient.backends import get_backend
    from resilient.state import variables

    leaves = [leaf for leaf, _ in pairs]
    tensors = {
        leaf.name + suffix: value for leaf, value in pairs for suffix in leaf.copies
    }
    as_now = [leaf.to_json() for leaf in leaves]
    variables.assign(get_backend(), as_now, leaves, tensors)


def _weights(model: "keras.layers.Layer") -> "list[Leaf]":
    from resilient.state import variables

    ids = {id(weight) for weight in model.weights}
    found = [leaf for leaf in variables.leaves(model) if id(leaf.target) in ids]
    if model.built and found:
        return found
    raise NotSupportedError(
        "A model must be built before it can start from other weights.",
        received=f"{type(model).__name__} without weights",
        hint="Call it on a batch, or give it a keras.Input.",
    )


def _steps(path: Path) -> list[Path]:
    """The checkpoints of ours at a path, the newest first."""
    if not path.is_dir():
        return []
    if steps := layout.committed_steps(path):
        return [path / layout.committed_name(step) for step in reversed(steps)]
    names = map(layout.committed_name, layout.committed_steps(path.parent))
    return [path] if path.name in names else []


def _require_no_runs(path: Path) -> None:
    """Raise if the path is a run without checkpoints, or holds several runs."""
    if not path.is_dir():
        return
    if (path / layout.EVENTS).exists():
        raise CheckpointNotFoundError(
            "There is no checkpoint in this run.",
            received=path,
            hint="Name a run that has saved one, or a file.",
        )
    runs = [each.name for each in sorted(path.iterdir()) if _steps(each)]
    if runs:
        raise NotSupportedError(
            "`start_from` names a directory of several runs.",
            received=path,
            hint=f"Name one of them: {', '.join(runs[:5])}.",
        )


def _of_run(
    steps: Sequence[Path], name: str, group: Group
) -> "tuple[Path, list[Weight]]":
    """The newest intact one, chosen by process 0; no checkpoint is moved."""
    if group.index:
        path = steps[0].with_name(group.broadcast("start from"))
        return path, _read(path, name)
    failed = []
    for path in steps:
        try:
            found = _read(path, name)
        except (ManifestError, DamageError) as error:
            log_fall_back(path.name, str(error))
            failed.append(f"\n  {path}: {printable(str(error)[:2000])}")
        else:
            group.broadcast("start from", path.name)
            return path, found
    raise CorruptCheckpointError(
        "No checkpoint to start from is intact.",
        received="".join(failed[:_NAMED]),
        hint="Start from another directory, or from a copy.",
    )


def _read(where: Path, of: str) -> "list[Weight]":
    import numpy as np

    from resilient.convert.overlap import Weight
    from resilient.state.weights import group

    checkpoint = Checkpoint.read(where)
    saved = checkpoint.load(record.PartReader())
    tensors, found = saved.tensors, []
    named = isinstance(saved.run, LoopRun) and of in saved.run.models
    for name, path in ((each["name"], each["path"]) for each in saved.run.variables):
        weight = group(name) in ("trainable", "non_trainable")
        weight = weight and (not named or name.split(".")[1] == of)
        # What each replica had for itself has no value for all.
        if weight and not path.endswith(_SEED) and name in tensors:
            found.append(Weight(group(name), path, np.asarray(tensors[name])))
    return found


def _of_file(
    asked: StartFrom, model: "keras.layers.Layer", ours: "list[Leaf]", group: Group
) -> "tuple[Pairs, list[str]]":
    """What fits, of what an import reads."""
    from resilient.convert import overlap
    from resilient.convert.recognise import recognised
    from resilient.keras_internals import replicas

    _require_no_runs(asked.source)
    found = recognised(asked.source)
    if asked.layers is not None or found.by_path:
        return overlap.of_paths(asked.source, found.named(), ours, asked.layers)
    if group.count > 1 or replicas.count(model) > 1:
        raise NotSupportedError(
            "A run on several processes or devices cannot start from this.",
            received=f"{asked.source}: {found.kind}",
            hint="Convert it with `resilient import`, and start from the result.",
        )
    if not hasattr(model, "save_weights"):
        raise NotSupportedError(
            "Only a whole Keras model can start from this file, not a layer.",
            received=f"{asked.source} for {type(model).__name__}",
            hint="Import it into its own model with `resilient import`, and start from "
            "that directory, with start_layers=.",
        )
    values = found.values(model)
    return [(leaf, values[leaf.name]) for leaf in ours], []
