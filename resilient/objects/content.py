"""Reads the content of attributes, and knows what that costs.

Content is read as plain values and arrays, whatever holds it: tensors of any library,
random generators, objects with ``state_dict``, Keras objects with variables. Callbacks
are read whole. Datasets hold gigabytes: their ``LARGE`` content is not read whole until
it is seen to change.

Everything unknown (handles, locks, memory maps, transforms of libraries) is ``OTHER``:
the script recreates it.
"""

import itertools
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AnySet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np
import xxhash

from resilient import keras_internals
from resilient.objects import buffers, kinds
from resilient.objects.sizing import WHOLE_BYTES, Size, is_table, size_of, tensor_size
from resilient.serialization import Encoded, classes, rng
from resilient.serialization.batches import pack, unpack
from resilient.serialization.classes import Known
from resilient.serialization.json_arrays import as_bytes
from resilient.serialization.json_values import NotEncodable, encode
from resilient.serialization.schema import taking

KEPT_BYTES = 2**28  # most that a checkpoint keeps of a changed value
_BUILT_IN = frozenset(
    {type(None), bool, int, float, complex, str, bytes}
    | {list, tuple, dict, set, frozenset, np.ndarray}
)
WRITTEN = frozenset({"state_dict", "variables", "generator"}) | buffers.KINDS


@dataclass(frozen=True)
class Scope:
    """Which parts of objects count as state.

    Attributes:
        whole: Whether everything counts, however large: what cannot be kept is named
            from the start, unless a library owns it. Otherwise, large or unknown
            content counts once it changes.
        asks: Whether to call ``state_dict`` on roots that have it, instead of looking
            inside.
        own: Returns the ids of variables that are saved elsewhere.
        hidden: Attributes that are handled elsewhere, by the name of a root.
    """

    whole: bool = False
    asks: bool = True
    own: Callable[[], AnySet[int]] = frozenset
    hidden: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """The size class of content, which decides how often it is read."""
        return math.inf if self.whole else WHOLE_BYTES

    def size_of(self, value: Any) -> Size:
        """Whether something consists of plain values only, and how large it is."""
        if not self.whole:
            return size_of(value)
        try:
            _encoded(value, {}, "value", Known())
        except NotEncodable:
            return Size.OTHER
        return Size.LIGHT


class Content(NamedTuple):
    """The content of an attribute's value.

    Attributes:
        kind: How it was read and will be written.
        plain: The content.
        size: The size of the content.
    """

    kind: str
    plain: Any
    size: Size


def read(value: Any, scope: Scope) -> Content:
    """The content of a value; reads nothing that is large."""
    if type(value) in _BUILT_IN:  # nearly all values
        return Content("value", value, Size.LIGHT if scope.whole else size_of(value))
    if is_table(value) and not scope.whole:
        return Content("table", value, Size.LARGE)
    if rng.is_jax_key(value):
        return Content("key", rng.jax_key_content(value), Size.LIGHT)
    size = tensor_size(value)
    if size is not None:
        if size > scope.limit:
            return Content("tensor", value, Size.LARGE)
        try:
            return Content("tensor", pack(value), Size.LIGHT)
        except Exception:  # symbolic, or of an element type unknown to NumPy
            return Content("value", value, Size.OTHER)
    if not scope.whole and (_is_module(value) or _is_trained(value)):
        return Content("value", value, Size.OTHER)
    if kinds.has_state_dict(value):
        return Content("state_dict", value.state_dict(), Size.LIGHT)
    if variables := kinds.variables(value):
        variables = _not_own([*variables, *_of_optimizer(value)], scope)
        if sum(map(_variable_bytes, variables)) > scope.limit:
            return Content("value", value, Size.OTHER)  # a model, not an augmentation
        packed = [pack(_tensor_of(each)) for each in variables]
        return Content("variables", packed, Size.LIGHT)
    if rng.is_torch_generator(value):
        return Content("generator", rng.state(value), Size.LIGHT)
    held = buffers.held(value)
    if held is not None and held.kind == "file" and scope.whole:
        held = None  # callbacks write to files
    if held is not None and held.nbytes <= scope.limit:
        return Content(held.kind, held.plain, Size.LIGHT)
    # Encoding it will show whether that is possible.
    return Content("value", value, Size.LIGHT if scope.whole else size_of(value))


def write(value: Any, kind: str, plain: Any, scope: Scope) -> None:
    """Give a live object the content that was read from a similar one.

    Raises:
        ValueError: Its shape or name differs.
        OSError: A file cannot be read there.
    """
    if kind == "state_dict":
        value.load_state_dict(plain)
    elif kind == "variables":
        live = _not_own(kinds.variables(value), scope)
        if len(plain) > len(live):
            live += _not_own(_of_optimizer(value, build=True), scope)
        for variable, packed in zip(live, plain, strict=True):
            variable.assign(unpack(packed))
    elif kind == "generator":
        rng.set_state(value, plain)
    else:
        buffers.write(value, kind, plain)


def made(kind: str, plain: Any, scope: Scope) -> Any:
    """A new value from content that is not written in place."""
    if kind == "tensor":
        tensor = unpack(plain)
        # A callback's tensors are where Keras computes.
        on_torch = scope.whole and kinds.is_tensor_of_keras(tensor)
        return keras.ops.convert_to_tensor(tensor) if on_torch else tensor
    if kind != "key":
        return plain
    with taking("a random key"):
        return rng.jax_key(*plain)


class Encoding(NamedTuple):
    """Content as JSON, the larger arrays that it refers to, and a checksum of both."""

    data: Encoded
    arrays: dict[str, np.ndarray]
    mark: str


def digest(plain: Any, name: str = "content", known: Known | None = None) -> Encoding:
    """Encode light content, to compare it with content of the same name.

    Args:
        plain: What was read.
        name: What the names of its arrays begin with.
        known: What it may refer to; anything if it is never decoded.

    Raises:
        NotEncodable: Some part of it cannot be encoded.
    """
    arrays: dict[str, np.ndarray] = {}
    data = _encoded(plain, arrays, name, Known() if known is None else known)
    found = xxhash.xxh3_128(json.dumps(data).encode())
    for array in arrays.values():
        found.update(as_bytes(array).data)
    return Encoding(data, arrays, found.hexdigest())


def encode_into(
    arrays: dict[str, np.ndarray],
    plain: Any,
    name: str,
    known: Known,
    found: Encoding | None = None,
) -> tuple[Encoded, set[str]]:
    """Encode content beside other content; also return names of its larger arrays.

    Args:
        arrays: Receives them, not copied.
        plain: What was read.
        name: Prefix of their names.
        known: What it may refer to.
        found: The result of ``digest``, if it was called.

    Raises:
        NotEncodable: Some part of it cannot be encoded.
    """
    if found is not None and not found.arrays.keys() & arrays.keys():
        arrays.update(found.arrays)
        return found.data, set(found.arrays)
    before = set(arrays)
    data = _encoded(plain, arrays, name, known)
    return data, arrays.keys() - before


def _encoded(
    plain: Any, arrays: dict[str, np.ndarray], name: str, known: Known
) -> Encoded:
    try:
        return encode(plain, arrays, name, known)
    except RuntimeError as error:  # another thread changed a dict meanwhile
        raise NotEncodable(name, plain, str(error)) from error


def _tensor_of(variable: Any) -> Any:
    if isinstance(variable, keras.Variable):
        return variable.value
    return variable.value()  # a variable of TensorFlow


def _not_own(variables: list[Any], scope: Scope) -> list[Any]:
    own = scope.own()
    return [variable for variable in variables if id(variable) not in own]


def _of_optimizer(value: Any, *, build: bool = False) -> list[Any]:
    """The variables of the optimizer of a model that a callback may train.

    Args:
        value: Anything.
        build: Whether training it has built the optimizer, in another process.
    """
    optimizer = value.optimizer if _is_trained(value) else None
    if optimizer is None:
        return []
    if build and not optimizer.built:
        optimizer.build(value.trainable_variables)
    return list(optimizer.variables)


def is_iterator(value: Any) -> bool:
    """Whether it is in the middle of something without an accessible position."""
    known = type(value).__module__ in ("builtins", "itertools")
    return isinstance(value, types.GeneratorType | itertools.count) or (
        known and isinstance(value, Iterator)
    )


def _is_module(value: Any) -> bool:
    """A torch module is a transform or a model; on torch Keras's layers are too."""
    names = {(classes.top_module(c), c.__name__) for c in type(value).__mro__}
    return ("torch", "Module") in names and not kinds.is_keras(value)


def _is_trained(value: Any) -> bool:
    """The model in training has its own place in a checkpoint."""
    return keras_internals.is_trainer(value) and bool(value.compiled)


def _variable_bytes(variable: Any) -> int:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    return int(np.prod(variable.shape)) * itemsize
