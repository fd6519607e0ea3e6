"""Remembers a value as it was when training began, to detect later changes.

Light content is compared by a full checksum. Large content is compared by its identity
and a sample of its elements: a change of a few elements of a large array may go
unnoticed. A changed array is saved whole, up to a size limit; of a shuffled long list,
the order is saved.
"""

import operator
import weakref
from collections.abc import Callable
from collections.abc import Set as AnySet
from typing import Any

import numpy as np

from resilient.errors import NotSupportedError
from resilient.objects import kinds
from resilient.objects.content import (
    KEPT_BYTES,
    Content,
    Encoding,
    Scope,
    digest,
    encode_into,
    is_iterator,
    read,
)
from resilient.objects.opaque_hash import opaque_hash
from resilient.objects.sizing import WHOLE_BYTES, Size, nbytes_of, sample
from resilient.serialization import JSON, classes
from resilient.serialization.batches import pack
from resilient.serialization.classes import Known
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import NotAdmitted, NotEncodable
from resilient.serialization.schema import MalformedError

# Identity does not matter for these.
IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset, type(None))
Arrays = dict[str, np.ndarray]


class Lost(Exception):
    """Something changed, and the change cannot be saved."""


class Seen:
    """One value, as it was when this object was created.

    Args:
        scope: What counts as state.
        name: Prefix for the names of its arrays.
        value: The value.
        elsewhere: Ids of objects that are tracked separately.

    Attributes:
        value: Returns the very object, or None once it is gone.
        items: The items that a long container had.
        kind: How its content was read.
        data: Its content, except for larger arrays.
        known: The classes and functions in it, which later content may refer to.
    """

    def __init__(
        self,
        scope: Scope,
        name: str,
        value: Any = None,
        elsewhere: AnySet[int] = frozenset(),
    ) -> None:
        self._scope, self._name = scope, name
        self._elsewhere, self._itself = elsewhere, id(value)
        content = read(value, scope)
        self.kind = content.kind
        self._size = content.size
        self.items: list[Any] | None = None
        self.data: Any = None
        self._mark: str | None = None
        self._later: tuple[type, str | None] | None = None
        self.known = Known()
        self.value: Callable[[], Any] = lambda: value
        if content.size is Size.LIGHT:
            try:
                self.data, arrays, self._mark = digest(content.plain, name, self.known)
                if sum(array.nbytes for array in arrays.values()) > WHOLE_BYTES:
                    self.value = _weak(value)
            except NotEncodable:
                self._size = Size.OTHER
        elif content.size is Size.LARGE:
            self._mark = sample(value)
            self.items = _items(value)
            if self.items is None:  # do not keep it alive after its owner drops it
                self.value = _weak(value)
        self._is_of_library = classes.is_of_library(type(value))
        if self._size is Size.OTHER and (self._is_of_library or not scope.whole):
            self._mark = self._hash(value)
        self.known.close()

    @classmethod
    def looked_into(cls, scope: Scope, name: str, value: Any) -> "Seen":
        """An object whose attributes are compared one by one."""
        made = cls(scope, name)
        made.kind, made._size = "object", Size.OTHER
        made.value = lambda: value
        return made

    @classmethod
    def nothing(
        cls, scope: Scope, name: str, elsewhere: AnySet[int], known: Known
    ) -> "Seen":
        """A place that held nothing, or something else."""
        made = cls(scope, name, None, elsewhere)
        made.known = known
        made.kind, made._mark = "nothing", None
        return made

    def is_light(self) -> bool:
        """Whether all of its content was read."""
        return self._size is Size.LIGHT

    def is_written_in_place(self) -> bool:
        """Whether the very object is still there, and can be given its content."""
        # A file may be closed by now.
        fixed = self.kind == "file" or isinstance(self.value(), IMMUTABLE)
        return self.is_light() and not fixed

    def is_known(self) -> bool:
        """Whether it can be saved, or the script makes it again.

        Objects of libraries are assumed to be recreated until they are seen to change.
        """
        known = self._size is not Size.OTHER or self._is_of_library
        return known or kinds.is_configuration(self.value())

    def change(self, value: Any, arrays: Arrays) -> JSON | None:
        """What to save for the value; None if it did not change.

        Args:
            value: The current value in its place.
            arrays: Receives the larger arrays.

        Raises:
            Lost: It changed, and cannot be saved.
        """
        if is_iterator(value) and not self._scope.whole:
            raise Lost
        content = self._read(value)
        if content.kind == "file" and self._was_nothing():
            return None  # opened on demand, and read at random
        if content.size is Size.LARGE:
            return self._large(value, content, arrays)
        if content.size is Size.LIGHT:
            try:
                found = digest(content.plain, self._name, self.known)
                if self.kind == content.kind and self._mark == found.mark:
                    return None
                return self._kept(value, content.kind, content.plain, arrays, found)
            except NotAdmitted as error:
                raise Lost from error
            except NotEncodable as error:
                if content.kind == "state_dict" and not self._scope.whole:
                    raise _not_plain(value, error) from error
        if self._is_same(value):
            return None
        raise Lost

    def _read(self, value: Any) -> Content:
        content = read(value, self._scope)
        if (
            content.kind == "state_dict"
            and self.value() is not value
            and classes.is_plain(type(value))
        ):
            return Content("value", value, Size.LIGHT)  # can be rebuilt
        return content

    def _is_same(self, value: Any) -> bool:
        """Whether an object that we do not understand shows no change."""
        if self._scope.whole:
            opaque = self._size is Size.OTHER and self.kind != "object"
            if not opaque or self.value() is not value:
                return False
            return self._mark is None or self._hash(value) in (self._mark, None)
        now = self._hash(value)
        if self._was_nothing():  # created on demand, like handles
            self._later = self._later or (type(value), now)
            return self._later in ((type(value), now), (type(value), None))
        if self.kind == "object":  # a container that grew too long
            return False
        if now is not None and self._mark is not None:
            return now == self._mark
        # Nothing can be seen. A different object of the same kind is a reopened handle.
        return type(value) is type(self.value())

    def _hash(self, value: Any) -> str | None:
        elsewhere = self._elsewhere - {self._itself}
        # A full read saves no generators for what is in it.
        return opaque_hash(value, elsewhere, drawn=self._scope.whole)

    def is_whole(self) -> bool:
        """Whether it was large, and the very object has not changed."""
        value = self.value()
        if self._size is not Size.LARGE or value is None:
            return False
        return self._mark == sample(value) and _are(self.items, _items(value))

    def again(self) -> Any:
        """Rebuild its initial content.

        Raises:
            LookupError: It had larger arrays, which were not copied.
        """
        if self._size is not Size.LIGHT:
            raise LookupError
        try:
            return decode(self.data, {}, self.known)
        except MalformedError as error:
            raise LookupError from error

    def _large(self, value: Any, content: Content, arrays: Arrays) -> JSON | None:
        if self.value() is value and self.is_whole():
            return None
        nbytes = nbytes_of(value)
        if nbytes is not None and nbytes <= KEPT_BYTES:
            plain = pack(value) if content.kind == "tensor" else value
            try:
                return self._kept(value, content.kind, plain, arrays)
            except NotEncodable as error:
                raise Lost from error
        now = _items(value) if type(value) is list else None
        order = _order(self.items, now)
        if order is None:
            raise Lost
        return self._kept(value, "order", order, arrays)

    def _kept(
        self,
        value: Any,
        kind: str,
        plain: Any,
        arrays: Arrays,
        found: Encoding | None = None,
    ) -> JSON:
        data, names = encode_into(arrays, plain, self._name, self.known, found)
        # If everything is read whole, a snapshot follows at once and copies the values.
        if not self._scope.whole or kind not in ("value", "state_dict"):
            arrays |= {name: np.array(arrays[name]) for name in names}
        same = value is not None and self.value() is value
        return {"kind": kind, "data": data, "same": same}

    def _was_nothing(self) -> bool:
        return self._size is Size.LIGHT and self.value() is None


def _not_plain(value: Any, error: NotEncodable) -> NotSupportedError:
    return NotSupportedError(
        f"The state_dict() of {type(value).__qualname__} cannot be saved.",
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
    """The former index of each item; None if the items are not the same."""
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
