"""Reads and writes what changes in place: arrays, tensors, variables, files and more.

Each kind of content is read as plain values and arrays, and written into a live object
of the same kind. Some kinds can also be made anew. Objects that hold plain content are
open readable files (their position; for in-memory files also the content),
``array.array``, shared values of ``multiprocessing``, and subclasses of NumPy arrays,
including masked arrays. Large content of datasets, which hold gigabytes, is identified
by a checksum of about 4,000 of its elements, always the same ones.
"""

import array
import contextlib
import json
from typing import Any

import keras
import numpy as np
import xxhash

from resilient.backends.arrays import as_bytes
from resilient.keras_internals import BACKEND
from resilient.objects.kinds import IN_MEMORY, is_frame, shared
from resilient.objects.parts import items_of
from resilient.serialization import classes, rng
from resilient.serialization.batches import pack, unpack
from resilient.serialization.json_values import NotEncodable, encode
from resilient.serialization.schema import taking

# Kinds of which a new object can be made.
MADE = frozenset({"ndarray", "value", "tensor", "key", "random"})
KEPT_BYTES = 2**28  # most that a checkpoint keeps of a changed value of data
SAMPLED = 4096
_REMEMBERED = 1 << 20  # most bytes of content that is kept to undo changes


def is_fixed(value: Any, kind: str) -> bool:
    """Whether such a value never changes, so that its identity says all."""
    return kind == "key" or (kind == "tensor" and not hasattr(value, "data_ptr"))


def read(value: Any, kind: str) -> Any:
    """The content of an object of a kind, not copied where that is possible."""
    if kind in ("ndarray", "random"):
        return value
    if kind == "value":
        return set(value) if isinstance(value, set) else value
    if kind == "key":
        return rng.jax_key_content(value)
    if kind in ("tensor", "variable"):
        return _packed(value, kind)
    if kind == "generator":
        return rng.state(value)
    if kind == "state_dict":
        return value.state_dict()
    if kind == "table":
        keys, values = value.export()
        return [np.asarray(keys), np.asarray(values)]
    if kind in ("file", "memory"):
        return _read_file(value, kind)
    if kind == "array":  # of none, NumPy makes no view
        return np.frombuffer(value or b"", value.typecode)
    if kind == "shared":
        return np.frombuffer(shared(value), np.uint8)
    masked = isinstance(value, np.ma.MaskedArray)
    mask = np.ma.getmaskarray(value) if masked else None
    return np.ma.getdata(value).view(np.ndarray), mask


def mark(value: Any, kind: str, limit: float) -> str | None:
    """A checksum of the content, or None if there is none to compare.

    Args:
        value: The object.
        kind: The kind of its content.
        limit: Bytes above which a sample of an array or tensor is enough.

    Raises:
        NotEncodable: Some part of it cannot be saved.
    """
    if kind == "long" or (kind == "library" and is_frame(value)):
        return sample(value)
    if kind == "library":
        return str(_shallow(value))
    if is_fixed(value, kind):
        return None
    if kind in ("ndarray", "tensor") and value.nbytes > limit:
        return sample(value)
    if kind == "ndarray" and not value.dtype.hasobject:
        found = xxhash.xxh3_128(f"{value.dtype} {value.shape}".encode())
        found.update(as_bytes(value).data)
        return found.hexdigest()
    return digest(read(value, kind))


def remembered(value: Any, kind: str, limit: float) -> tuple[str | None, Any]:
    """The same, and the content itself if that is small, to undo changes.

    Raises:
        NotEncodable: Some part of it cannot be saved.
    """
    found = mark(value, kind, limit)
    if kind == "long":
        return found, items_of(value)
    large = getattr(value, "nbytes", 0) > _REMEMBERED
    if large or kind in ("library", "state_dict", "key"):
        return found, None
    arrays: dict[str, np.ndarray] = {}
    content = encode(read(value, kind), arrays, "content")
    return found, (content, {n: np.array(a) for n, a in arrays.items()})


def sample(value: Any) -> str:
    """A checksum of some elements of a large value, always the same ones."""
    found = xxhash.xxh3_128()
    if type(value) is np.ndarray and not value.dtype.hasobject:
        found.update(f"{value.dtype} {value.shape}".encode())
        found.update(as_bytes(value.flat[_places(value.size)]).data)
    elif classes.top_module(type(value)) == "torch":
        flat = value.detach().reshape(-1)
        parts = pack(flat[_places(len(flat)).tolist()])["parts"]
        found.update(b"".join(part.tobytes() for part in parts))
    elif is_frame(value):
        rows = value.iloc[_places(len(value))[:64]]
        found.update(f"{len(value)} {rows.to_numpy().tolist()!r}".encode())
    elif isinstance(value, list | tuple):
        for place in _places(len(value))[:64]:
            item = value[place]
            if type(item) is np.ndarray and not item.dtype.hasobject and item.size:
                found.update(as_bytes(item.flat[_places(item.size)[:64]]).data)
    return found.hexdigest()  # elements of other kinds cannot change in place


def digest(plain: Any) -> str:
    """A checksum of plain values and arrays.

    Raises:
        NotEncodable: Some part of it cannot be saved.
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        data = encode(plain, arrays, "x")
    except RuntimeError as error:  # another thread changed a dict meanwhile
        raise NotEncodable("x", plain, str(error)) from error
    found = xxhash.xxh3_128(json.dumps(data).encode())
    for each in arrays.values():
        found.update(as_bytes(each).data)
    return found.hexdigest()


def write(value: Any, kind: str, plain: Any) -> None:
    """Give a live object the content of another.

    Raises:
        ValueError: It does not fit.
    """
    if kind == "ndarray":
        _require_alike(value, plain)
        value[...] = plain
    elif kind == "value":
        _require(type(value) is type(plain) or isinstance(value, set))
        value.clear()
        value.update(list(plain)) if isinstance(value, set) else value.extend(plain)
    elif kind == "tensor":
        tensor = unpack(plain)
        _require_alike(value, tensor)
        value.data.copy_(tensor)
    elif kind == "variable":
        value.assign(unpack(plain))
    elif kind == "generator":
        rng.set_state(value, plain)
    elif kind == "random":
        _require(rng.is_generator(plain) and rng.kind(value) == rng.kind(plain))
        rng.set_state(value, rng.state(plain))
    elif kind == "state_dict":
        value.load_state_dict(plain)
    elif kind == "table":
        keys, _ = value.export()
        value.remove(keys)
        value.insert(*plain)
    elif kind in ("file", "memory"):
        _write_file(value, *plain)
    elif kind == "array":
        _require(plain.dtype == np.dtype(value.typecode))
        value[:] = array.array(value.typecode, plain.tobytes())
    elif kind == "shared":
        np.frombuffer(shared(value), np.uint8)[...] = plain
    else:
        data, mask = plain
        _require_alike(value, data)
        np.ma.getdata(value).view(np.ndarray)[...] = data
        if mask is not None:
            value.mask = mask


def made(kind: str, plain: Any) -> Any:
    """A new object with this content."""
    if kind == "tensor":
        tensor = unpack(plain)
        on_torch = BACKEND == "torch" and keras.ops.is_tensor(tensor)
        return keras.ops.convert_to_tensor(tensor) if on_torch else tensor
    if kind == "key":
        with taking("a random key"):
            return rng.jax_key(*plain)
    return plain


def order(old: tuple[Any, ...], new: tuple[Any, ...]) -> np.ndarray | None:
    """The former index of each item; None if the items are not the same."""
    if len(old) != len(new):
        return None
    before, now = (np.fromiter(map(id, items), np.int64) for items in (old, new))
    first, last = (np.argsort(ids, kind="stable") for ids in (before, now))
    if not np.array_equal(before[first], now[last]):
        return None
    places = np.empty(len(new), np.int64)
    places[last] = first
    return places


def _packed(value: Any, kind: str) -> Any:
    if kind == "variable":
        value = value.value if isinstance(value, keras.Variable) else value.value()
    try:
        return pack(value)
    except Exception as error:  # symbolic, of no memory, or of an unknown dtype
        raise NotEncodable(kind, value, str(error)) from error


def _shallow(value: Any) -> list[Any]:
    """Which objects are in a library's object, and in the containers there."""
    found: list[Any] = []
    for name, item in classes.attributes(value).items():
        inner = items_of(item) if isinstance(item, list | dict | tuple) else ()
        plain = isinstance(item, bool | int | float | str | bytes | type(None))
        drawn = rng.is_generator(item) and rng.state(item)
        found += [name, item if plain else id(item), *map(id, inner), drawn]
    return found


def _read_file(file: Any, kind: str) -> tuple[str, int, Any]:
    with contextlib.suppress(Exception):
        # Copied on write.
        content = file.getvalue() if kind == "memory" else None
        return _name(file), file.tell(), content
    raise NotEncodable("file", file, "its position is unknown")  # it is iterated


def _name(file: Any) -> str:
    return str(getattr(file, "name", ""))


def _write_file(file: Any, name: str, place: int, content: Any) -> None:
    if name != _name(file):
        raise ValueError("a different file")
    if content is not None:
        if type(file) not in IN_MEMORY:
            raise ValueError("a file that is not in memory")  # nor ours to overwrite
        file.seek(0)
        file.truncate()
        file.write(content)
    file.seek(place)


def _places(count: int) -> np.ndarray:
    """Some of ``count`` indices, spread at random so as not to miss patterns."""
    if count <= SAMPLED:
        return np.arange(count)
    return np.random.RandomState(0).randint(0, count, SAMPLED)


def _require(fits: bool) -> None:
    if not fits:
        raise ValueError("another kind of content")


def _require_alike(live: Any, value: Any) -> None:
    _require((live.shape, live.dtype) == (value.shape, value.dtype))
