"""A value as it was at some moment, to tell later whether it changed.

Larger arrays are remembered by a checksum, not by a copy. So one that is changed in
place can be noticed but not put back, and ``again`` says so with a ``LookupError``.
"""

import collections
import json
import weakref
from typing import Any

import numpy as np
import xxhash

from resilient.serialization import Encoded, classes, rng
from resilient.serialization.json_arrays import as_bytes
from resilient.serialization.json_values import NotEncodable, decode, encode


class Remembered:
    """One value, as it was when this was made.

    Attributes:
        known: Whether it could be encoded.
    """

    def __init__(self, value: Any, name: str) -> None:
        arrays: dict[str, np.ndarray] = {}
        try:
            self._data = encode(value, arrays, name)
            self.known = True
        except NotEncodable:
            self._data, self.known = None, False
        self._text = json.dumps(self._data)
        self._digests = {key: _digest(array) for key, array in arrays.items()}
        # Remembering must not keep large arrays alive that the owner has dropped.
        self._value = _weak(value) if arrays else (lambda: value)

    def is_now(self, data: Encoded, arrays: dict[str, np.ndarray]) -> bool:
        """Whether a value encoded now, under the same name, is still the same."""
        return (
            self.known
            and json.dumps(data) == self._text
            and self._digests == {key: _digest(array) for key, array in arrays.items()}
        )

    def is_object(self, value: Any) -> bool:
        """Whether ``value`` is the very object that was remembered."""
        return value is not None and self._value() is value

    def object(self) -> Any:
        """The very object; None if it is gone."""
        return self._value()

    def again(self) -> Any:
        """An equal, new value.

        Raises:
            LookupError: It holds larger arrays, which were not copied.
        """
        return decode(self._data, {})


def _weak(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: None


def _digest(array: np.ndarray) -> str:
    return xxhash.xxh3_128_hexdigest(as_bytes(array).data)


def assign_in_place(live: Any, value: Any) -> bool:
    """Give a mutable object the content of another; False if that cannot be done."""
    if type(live) is not type(value):
        return False
    if isinstance(live, np.ndarray):
        if (live.shape, live.dtype) != (value.shape, value.dtype):
            return False
        if not live.flags.writeable:
            return False
        live[...] = value
    elif isinstance(live, dict | set):
        live.clear()
        live.update(value)
    elif isinstance(live, list | bytearray):
        live[:] = value
    elif isinstance(live, collections.deque):
        live.clear()
        live.extend(value)
    elif rng.is_generator(live):
        if rng.kind(live) != rng.kind(value):
            return False
        rng.set_state(live, rng.state(value))
    elif hasattr(live, "copy_"):  # a tensor of PyTorch, which may change in place
        if (live.shape, live.dtype) != (value.shape, value.dtype):
            return False
        live.data.copy_(value)
    elif classes.is_plain(type(live)):
        classes.set_attributes(live, classes.attributes(value))
    else:
        return False
    return True
