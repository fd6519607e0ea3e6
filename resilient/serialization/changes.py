"""What changed in objects since training began, as a checkpoint has it."""

from typing import Any, Literal, NotRequired, TypedDict

# How content is read and written back, and what else a place may be.
Kind = Literal[
    "value",
    "tensor",
    "table",
    "key",
    "state_dict",
    "variables",
    "generator",
    "file",
    "array",
    "shared",
    "subclass",
    "order",
    "alias",
    "object",
]


class Change(TypedDict):
    """What is in one place.

    ``of`` is the home of its owner, ``key`` its name or index there. ``data`` is the
    content, encoded; of an ``alias`` or ``object`` another path. ``same`` says whether
    the very object is still there, and ``was`` where it was before.
    """

    of: str
    key: str | int
    kind: Kind
    data: Any
    same: NotRequired[bool]
    was: NotRequired[str]


class Changes(TypedDict, total=False):
    """The changes of some objects, by path; ``orders`` of the keys of dictionaries."""

    changes: dict[str, Change]
    orders: dict[str, list[str | int]]
    deleted: list[str]
    lost: list[str]
    arrays: dict[str, Any]


CallbackState = TypedDict(
    "CallbackState",
    {
        "class": str,
        "state_dict": NotRequired[Any],
        "special": NotRequired[Any],
        "changes": NotRequired[dict[str, Change]],
        "orders": NotRequired[dict[str, list[str | int]]],
        "deleted": NotRequired[list[str]],
    },
)
