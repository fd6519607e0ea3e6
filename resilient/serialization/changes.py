"""A checkpoint's record of what has changed in objects since training began."""

from typing import Any, Literal, NotRequired, TypedDict

from resilient.serialization.schema import MalformedError, vector

# How content is read and written back, and what else a place may hold.
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


_LEADS, _ORDER = ("alias", "object"), "order"
CHECKED = (*_LEADS, _ORDER)  # kinds whose content is the same for every owner


class Change(TypedDict):
    """The content of one place.

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


def require_fit(path: str, change: Change, plain: Any) -> None:
    """Raise unless the content of a place matches its kind.

    Args:
        path: The path of the place.
        change: Its content.
        plain: Its ``data``, decoded.

    Raises:
        MalformedError: It does not.
    """
    if change["kind"] in _LEADS and not isinstance(plain, str):
        raise MalformedError(f"{path} leads to no path")
    if change["kind"] == _ORDER:
        order = vector(plain, "int64", f"the order of {path}")
        if sorted(order.tolist()) != list(range(len(order))):
            raise MalformedError(f"the order of {path} has not each place once")


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
