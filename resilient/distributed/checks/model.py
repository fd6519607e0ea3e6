"""Checks, before the first batch, that all processes train the same model alike.

Variables are identified by name in a checkpoint that all processes write together. A
process with different names would save a checkpoint it cannot resume from; one that
validates when others do not, or trains longer, would wait for them forever.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from resilient.distributed.group import Group
from resilient.errors import ResilientError
from resilient.serialization.batches import checksum
from resilient.state.variables import Leaf


def require_same_variables(live: Sequence[Leaf], group: Group) -> None:
    """Raise if processes have different variables.

    Args:
        live: The variables of this process.
        group: The processes.

    Raises:
        ResilientError: Names the processes, and some variables of each.
    """
    mine = {leaf.name: f"{leaf.shape} {leaf.dtype}" for leaf in live}
    _require_same(
        mine,
        "variables",
        group,
        problem="The processes have different variables, or name them differently.",
        hint="Create the same layers and optimizers in the same order in all "
        "processes, or name them: Keras numbers unnamed ones in the order "
        "they are created.",
    )


def require_same_values(shared: Mapping[str, Any], group: Group) -> None:
    """Raise if processes have different values of shared variables.

    Args:
        shared: Host arrays, by name.
        group: The processes.

    Raises:
        ResilientError: Names the processes.
    """
    mine = {name: checksum(array) for name, array in shared.items()}
    _require_same(
        mine,
        "values",
        group,
        problem="The processes do not train the same model: their values differ.",
        hint="Wrap the model in DistributedDataParallel, or let each process train "
        "on its own with its own checkpoint_dir.",
    )


def require_same_settings(settings: Mapping[str, Any], group: Group) -> None:
    """Raise if processes train with different settings.

    Args:
        settings: The settings of this process by name: JSON, except for `class_weight`.
        group: The processes.

    Raises:
        ResilientError: Names the processes, and some settings of each.
    """
    mine = {f"{name}:": repr(value) for name, value in settings.items()}
    _require_same(
        mine,
        "settings",
        group,
        problem="The processes train with different settings: they would wait for "
        "each other forever, or not train the same model.",
        hint="Give compile and fit the same arguments in all processes, and "
        "validation data to all or none.",
    )


def _require_same(
    mine: dict[str, str], topic: str, group: Group, *, problem: str, hint: str
) -> None:
    everyones = group.gather(topic, mine)
    differing = group.broadcast(f"other {topic}", _differing(everyones))
    if differing:
        raise ResilientError(problem, received="; ".join(differing), hint=hint)


def _differing(everyones: list[dict[str, str]]) -> list[str]:
    return [
        f"process {index} has {_some(theirs.items() - everyones[0].items())}, "
        f"process 0 {_some(everyones[0].items() - theirs.items())}"
        for index, theirs in enumerate(everyones)
        if theirs != everyones[0]
    ]


def _some(found: set[tuple[str, str]]) -> str:
    names = sorted(f"{name} {told[:200]}" for name, told in found)
    more = f" and {len(names) - 3} more" if names[3:] else ""
    return (", ".join(names[:3]) or "none of these") + more
