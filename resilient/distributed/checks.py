"""Checks that all processes draw the right batches and train the same model alike.

Two processes that split the same batches, but shuffle in different orders, would train
some samples twice and others never. Two that should have different parts of the data,
but have the same part, would do all work twice. Variables are identified by name in a
checkpoint that all write together. A process that validates when others do not, or
trains longer, would wait for them forever.
"""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from resilient.distributed.group import Group
from resilient.errors import DataNotResumableError, ResilientError
from resilient.serialization.batches import checksum
from resilient.state.variables import Leaf

_END: Any = object()

Error = Callable[[str], ResilientError]  # the error of what was received


def compared(
    batches: Iterable[Any], name: str, group: Group, shard: int = 0
) -> Iterator[Any]:
    """The batches, after comparing the first one with that of the other processes.

    The iterator is created at once, as in Keras: that may draw random numbers, and
    Keras creates some iterators from which it draws no batch.

    Args:
        batches: What this process draws.
        name: The data's name in messages.
        group: The processes.
        shard: The part of the data that this process draws; processes with the same
            number draw the same part. A warning says if different parts are the same.

    Raises:
        DataNotResumableError: Processes that should draw the same batch did not.
    """

    def check(number: int, batch: Any) -> Any:
        if number:
            return batch
        said = group.gather(f"first of {name}", [shard, checksum(batch)])
        first: dict[int, str] = dict(reversed(said))  # of each part
        others = [n for n, (part, found) in enumerate(said) if found != first[part]]
        twins = len(set(first.values())) < len(first)
        others, twins = group.broadcast(f"others of {name}", [others, twins])
        if others:
            what = "begin with a different batch than earlier processes"
            raise _data_differ(f"`{name}`: processes {others} {what}")
        if twins and name == "x":  # validation data may be shared
            warnings.warn(
                f"Several processes begin with the same batch of `{name}`, and each "
                "trains everything that it gets. Give each its own part, or a "
                "tf.data.Dataset, which keras.distribution splits "
                "(auto_shard_dataset).",
                stacklevel=2,
            )
        return batch

    return itertools.starmap(check, enumerate(batches))


def in_step(batches: Iterable[Any], name: str, group: Group) -> Iterator[Any]:
    """The batches of data whose length is unknown.

    Before each batch the processes agree that all have one: a process that trains one
    more batch than another would wait for it forever.

    Args:
        batches: What this process trains; the iterator is created at once.
        name: The data's name in messages.
        group: The processes.

    Raises:
        ResilientError: The data of this process ended, or that of process 0.
    """

    def agreed(iterator: Iterator[Any]) -> Iterator[Any]:
        for number in itertools.count():
            batch = next(iterator, _END)
            more = group.broadcast(f"more of {name}", batch is not _END)
            if more != (batch is not _END):
                shorter, longer = (group.index, 0) if more else (0, group.index)
                raise _lengths_differ(
                    f"`{name}` ends after {number:,} batches in process {shorter}, and "
                    f"not in process {longer}"
                )
            if batch is _END:
                return
            yield batch

    return agreed(iter(batches))


def require_same_length(length: list[int | None], name: str, group: Group) -> None:
    """Raise before training if processes have data of different lengths.

    Args:
        length: Batches of the data, and of an epoch if limited; None: unknown.
        name: The data's name in messages.
        group: The processes.

    Raises:
        ResilientError: They differ.
    """
    of = (f"batches of `{name}`:", f"steps of an epoch of `{name}`:")
    mine = dict(zip(of, map(str, length), strict=True))
    _require_same(mine, "length", group, _lengths_differ)


def require_same_arrays(
    fingerprint: Mapping[str, Any], name: str, group: Group
) -> None:
    """Raise if processes that split arrays have different ones.

    Args:
        fingerprint: The fingerprint of this process's arrays.
        name: What they are called in messages.
        group: The processes.

    Raises:
        DataNotResumableError: They differ.
    """
    mine = {f"{key} of `{name}`:": repr(value) for key, value in fingerprint.items()}
    _require_same(mine, "arrays", group, _data_differ)


def require_same_variables(live: Sequence[Leaf], group: Group) -> None:
    """Raise if processes have different variables.

    Args:
        live: The variables of this process.
        group: The processes.

    Raises:
        ResilientError: Names the processes, and some variables of each.
    """

    def error(received: str) -> ResilientError:
        return ResilientError(
            "The processes have different variables, or name them differently.",
            received=received,
            hint="Create the same layers and optimizers in the same order in all "
            "processes, or name them: Keras numbers unnamed ones in the order they are "
            "created.",
        )

    mine = {leaf.name: f"{leaf.shape} {leaf.dtype}" for leaf in live}
    _require_same(mine, "variables", group, error)


def require_same_values(shared: Mapping[str, Any], group: Group) -> None:
    """Raise if processes have different values of shared variables.

    Args:
        shared: Host arrays, by name.
        group: The processes.

    Raises:
        ResilientError: Names the processes.
    """

    def error(received: str) -> ResilientError:
        return ResilientError(
            "The processes do not train the same model: their values differ.",
            received=received,
            hint="Wrap the model in DistributedDataParallel, or let each process train "
            "on its own with its own checkpoint_dir.",
        )

    mine = {name: checksum(array) for name, array in shared.items()}
    _require_same(mine, "values", group, error)


def require_same_settings(settings: Mapping[str, Any], group: Group) -> None:
    """Raise if processes train with different settings.

    Args:
        settings: The settings of this process by name: JSON, except for `class_weight`.
        group: The processes.

    Raises:
        ResilientError: Names the processes, and some settings of each.
    """

    def error(received: str) -> ResilientError:
        return ResilientError(
            "The processes train with different settings: they would wait for each "
            "other forever, or not train the same model.",
            received=received,
            hint="Give compile and fit the same arguments in all processes, and "
            "validation data to all or none.",
        )

    mine = {f"{name}:": repr(value) for name, value in settings.items()}
    _require_same(mine, "settings", group, error)


def _require_same(mine: dict[str, str], topic: str, group: Group, error: Error) -> None:
    first, *others = [each.items() for each in group.gather(topic, mine) or [mine]]
    differing = [
        f"process {n} has {_some(theirs - first)}, process 0 {_some(first - theirs)}"
        for n, theirs in enumerate(others, 1)
        if theirs != first
    ]
    if differing := group.broadcast(f"other {topic}", differing):
        raise error("; ".join(differing))


def _some(found: Iterable[tuple[str, str]]) -> str:
    names = sorted(f"{name} {value[:200]}" for name, value in found)
    more = f" and {len(names) - 3} more" if names[3:] else ""
    return (", ".join(names[:3]) or "none of these") + more


def _lengths_differ(received: str) -> ResilientError:
    return ResilientError(
        "The processes have data of different lengths: those with more would wait for "
        "the others forever.",
        received=received,
        hint="Give all processes the same number of batches: drop the remainder, or "
        "pass steps_per_epoch (validation_steps) and endless data.",
    )


def _data_differ(received: str) -> DataNotResumableError:
    return DataNotResumableError(
        "The processes have different data but need the same: they train each batch "
        "together.",
        received=received,
        hint="Give them the same arrays, and shuffle with the same seed "
        "(keras.utils.set_random_seed, a DataLoader's generator). On PyTorch, before "
        "Keras 3.16 and in custom loops, a DataLoader may have a "
        "torch.utils.data.DistributedSampler instead.",
    )
