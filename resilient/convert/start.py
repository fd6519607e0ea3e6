"""Sets the initial weights of a new run, from another run or from a file.

It sets all weights of the model, or those of some layers. The optimizer, the data and
the random state are the new run's own. Nothing is set before everything has been
compared.

Importing this module loads neither Keras nor a backend.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resilient.convert.tensors import differences, first_lines, layouts, mismatch
from resilient.distributed.group import Group
from resilient.errors import message
from resilient.serialization import JSON
from resilient.storage import scratch

if TYPE_CHECKING:
    import keras
    import numpy as np

    from resilient.state.variables import Leaf

_Location = str | os.PathLike[str]


class StartFrom(NamedTuple):
    """What a new run, or a model of it, should start with.

    Attributes:
        source: A run's directory, one of its checkpoints, or what can be imported.
        layers: Matches the full paths of the weights to take; None: all.
    """

    source: Path
    layers: re.Pattern[str] | None


# By the name under which a model was passed to Run; of a fit, "".
Starts = Mapping[str, StartFrom]


def checked_starts(
    source: _Location | Mapping[str, _Location] | None,
    layers: str | None,
    models: Collection[str] = ("",),
) -> Starts:
    """Validate the arguments ``start_from`` and ``start_layers``.

    Args:
        source: For the only model, or a dict by name.
        layers: ``start_layers``, for all of them.
        models: Names of the Keras models and layers that a loop does not copy.

    Raises:
        ValueError: They are not paths and a regular expression, or do not say which
            model is meant.
    """
    if source is None and layers is None:
        return {}
    named = source if isinstance(source, Mapping) else dict.fromkeys(models, source)
    try:
        if not named.keys() <= set(models) or not (named is source or len(models) == 1):
            raise ValueError("which model is meant?")
        pattern = None if layers is None else re.compile(layers)
        paths = {n: Path(scratch.read_instead_of(x)) for n, x in named.items()}
    except (re.error, TypeError, ValueError) as error:
        raise ValueError(
            message(
                "`start_from` must be the path of a directory or a file, and "
                "`start_layers` a regular expression.",
                received=f"start_from={source!r}, start_layers={layers!r}: {error}",
                hint="With several models, pass Run a dict of paths by their names. It "
                f"can set: {', '.join(models) or 'none'}. With `state`, it trains "
                "copies of the weights: set those before you make the state.",
            )
        ) from None
    return {name: StartFrom(path.absolute(), pattern) for name, path in paths.items()}


def start(
    starts: Starts, models: "Mapping[str, keras.layers.Layer]", group: Group
) -> Iterator[tuple[str, JSON]]:
    """Set the requested weights, the same in every process.

    Args:
        starts: What models begin with: of a loop that has a model of the same name,
            with the weights of that one.
        models: The models by name.
        group: These processes.

    Yields:
        For each model, a line that says what was taken, and the event.

    Raises:
        CheckpointMismatchError: All are to be set and some cannot, or none can. Nothing
            was changed.
        CorruptCheckpointError: The checkpoint is damaged.
        NotSupportedError: The source cannot be read.
    """
    from resilient.backends import get_backend
    from resilient.state import variables

    chosen = {
        name: _chosen(each, models[name], name, group) for name, each in starts.items()
    }
    for pairs, *_ in chosen.values():
        leaves = [leaf for leaf, _ in pairs]
        tensors = {leaf.name + end: v for leaf, v in pairs for end in leaf.copies}
        variables.assign(get_backend(), variables.listed(leaves), leaves, tensors)
    for name, (pairs, others, source) in chosen.items():
        taken, count, left = len(pairs), len(models[name].weights), first_lines(others)
        line = f"{name}: " * bool(name)
        line += f"Starting with {taken} of {count} weights from {source}"
        line += f". Not taken: {'; '.join(left)}" * bool(left)
        event = {"source": source, "taken": taken, "count": count, "left": left}
        yield line, {"model": name} | event if name else event


def _chosen(
    asked: StartFrom, model: "keras.layers.Layer", name: str, group: Group
) -> "tuple[list[tuple[Leaf, np.ndarray]], list[str], str]":
    """The weights to set with their values, the others, and what the source is."""
    from resilient.convert.keras_files import by_path
    from resilient.convert.sources import find

    path, layers = asked
    if group.index:  # process 0 chooses the checkpoint of a run
        chosen = str(group.broadcast("start from"))
        path = path if path.name == chosen else path / chosen
    source = find(path)
    if not group.index:
        group.broadcast("start from", source.path.name)
    weights = {id(weight) for weight in model.weights}
    ours = {n: x for n, x in by_path(model).items() if id(x.target) in weights}
    theirs = source.tensors(model, {} if layers else ours, name)
    wanted = {n: x for n, x in ours.items() if not layers or layers.fullmatch(x.path)}
    different = differences(layouts(theirs), layouts(wanted))
    left = [different[n] for n in wanted if n in different]
    # A run has to have no other weights.
    must = [] if layers else left if source.saved is None else different
    if must or not model.built or len(left) == len(wanted):
        raise mismatch(source.path, different.values())
    pairs = [(x, theirs[n]) for n, x in wanted.items() if n not in different]
    return pairs, left, str(source.path)
