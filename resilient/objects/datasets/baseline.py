"""An attribute's value as it was when training began, to tell later what changed.

Light content is told by a checksum of all of it. Something large is told by its
identity and a sample of its elements, so that a change of a few elements of a large
array may go unnoticed; where it is noticed the array is kept whole, up to a size, and a
long list that was shuffled is kept as the order of its items.
"""

import operator
import weakref
from collections.abc import Callable
from collections.abc import Set as AnySet
from typing import Any, NamedTuple

import numpy as np

from resilient.errors import NotSupportedError
from resilient.objects.datasets import marks
from resilient.objects.datasets.content import (
    KEPT_BYTES,
    Content,
    Weight,
    digest,
    keep,
    read,
    sample,
    size,
)
from resilient.serialization import JSON
from resilient.serialization.batches import pack
from resilient.serialization.json_values import NotEncodable, decode


class Lost(Exception):
    """Something changed, and the change is not kept."""


class Change(NamedTuple):
    """What is kept of a change: JSON, and the arrays that it refers to."""

    entry: JSON
    arrays: dict[str, np.ndarray]


class Seen:
    """One value, as it was when this was made; without one, nothing was there.

    Attributes:
        value: Gives the very object, if it is still there.
        items: Of a long container: those it had.
        kind: How its content was read.
        data: Its content, but for larger arrays.
    """

    def __init__(self, value: Any = None, elsewhere: AnySet[int] = frozenset()) -> None:
        self._elsewhere = elsewhere
        content = read(value)
        self.kind = content.kind
        self._weight = content.weight
        self.items: list[Any] | None = None
        self.data: Any = None
        self._mark: str | None = None
        self._later: tuple[type, str | None] | None = None
        self.value: Callable[[], Any] = lambda: value
        if content.weight is Weight.LIGHT:
            try:
                self.data, self._mark = digest(content.plain)
            except NotEncodable:
                self._weight = Weight.OTHER
        elif content.weight is Weight.LARGE:
            self._mark = sample(value)
            self.items = _items(value)
            if self.items is None:  # must not be kept alive when its owner drops it
                self.value = _weak(value)
        if self._weight is Weight.OTHER:
            self._mark = marks.mark(value, elsewhere)

    @classmethod
    def looked_into(cls, value: Any) -> "Seen":
        """Of an object whose attributes are remembered on their own."""
        made = cls()
        made.kind, made._weight = "object", Weight.OTHER
        made.value = lambda: value
        return made

    def change(self, value: Any, name: str) -> Change | None:
        """What is to be kept of the value now; None if it did not change.

        Args:
            value: What is in its place now.
            name: For arrays.

        Raises:
            Lost: It changed, and cannot be kept.
        """
        content = read(value)
        if content.kind == "file" and self._was_nothing():
            return None  # opened when it was needed, and read here and there
        if content.weight is Weight.LARGE:
            return self._large(value, content, name)
        if content.weight is Weight.LIGHT:
            try:
                if self.kind == content.kind and self._mark == digest(content.plain)[1]:
                    return None
                return self._kept(value, content.kind, content.plain, name)
            except NotEncodable as error:
                if content.kind == "state_dict":
                    raise _not_plain(value, error) from error
        if self._is_marked(value):
            return None
        raise Lost

    def _is_marked(self, value: Any) -> bool:
        """Whether something that is not understood is not seen to have changed."""
        now = marks.mark(value, self._elsewhere)
        if self._was_nothing():  # made when it was needed, as handles are
            self._later = self._later or (type(value), now)
            return self._later in ((type(value), now), (type(value), None))
        if self.kind == "object":  # grew too long to be looked into
            return False
        if now is not None and self._mark is not None:
            return now == self._mark
        # Nothing can be told; another one of its kind was opened again.
        return type(value) is type(self.value())

    def is_whole(self) -> bool:
        """Whether this was something large, and the very object is as it was."""
        value = self.value()
        if self._weight is not Weight.LARGE or value is None:
            return False
        return self._mark == sample(value) and _are(self.items, _items(value))

    def again(self) -> Any:
        """The content that it had, made anew.

        Raises:
            LookupError: It had larger arrays, which were not copied.
        """
        if self._weight is not Weight.LIGHT:
            raise LookupError
        return decode(self.data, {})

    def _large(self, value: Any, content: Content, name: str) -> Change | None:
        if self.value() is value and self.is_whole():
            return None
        nbytes = size(value)
        if nbytes is not None and nbytes <= KEPT_BYTES:
            plain = pack(value) if content.kind == "tensor" else value
            return self._kept(value, content.kind, plain, name)
        now = _items(value) if type(value) is list else None
        order = _order(self.items, now)
        if order is None:
            raise Lost
        return self._kept(value, "order", order, name)

    def _kept(self, value: Any, kind: str, plain: Any, name: str) -> Change:
        kept = keep(plain, name)
        same = value is not None and self.value() is value
        return Change({"kind": kind, "data": kept.data, "same": same}, kept.arrays)

    def _was_nothing(self) -> bool:
        return self._weight is Weight.LIGHT and self.value() is None


def _not_plain(value: Any, error: NotEncodable) -> NotSupportedError:
    return NotSupportedError(
        f"The state_dict() of {type(value).__qualname__} cannot be kept.",
        received=str(error),
        hint="Return plain values, lists, dicts and numpy arrays.",
    )


def _weak(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: None


def _items(value: Any) -> list[Any] | None:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    return None


def _are(old: list[Any] | None, new: list[Any] | None) -> bool:
    """Whether both have the very same items."""
    if old is None or new is None:
        return old is new
    return len(old) == len(new) and all(map(operator.is_, old, new))


def _order(old: list[Any] | None, new: list[Any] | None) -> np.ndarray | None:
    """Where each item was; None if these are not the same items."""
    if old is None or new is None or len(old) != len(new):
        return None
    before, now = (np.fromiter(map(id, items), np.int64) for items in (old, new))
    sorted_before, sorted_now = (
        np.argsort(ids, kind="stable") for ids in (before, now)
    )
    if not np.array_equal(before[sorted_before], now[sorted_now]):
        return None
    order = np.empty(len(new), np.int64)
    order[sorted_now] = sorted_before
    return order
