"""TensorFlow: written in the format of ``tf.train.Checkpoint``, into ``state.*``.

``tf.train.load_checkpoint(directory)`` reads it, under the names
``tensors/<name, with each '.' doubled>/.ATTRIBUTES/VARIABLE_VALUE``, and so does
``tf.train.Checkpoint(tensors=...)``. We call the operation that ``tf.train.Checkpoint``
calls: its Python takes longer than writing ten megabytes, and holds the interpreter
that training needs.

A snapshot on the CPU copies nothing: it holds the variables' buffers, and TensorFlow
copies a buffer that someone else holds before it writes to it.

Refuses text, sparse and ragged tensors. The state of a random *kernel* (``tf.random.*``
inside a traced function, or called with an op seed) is out of reach of any library and
is not part of ``random_state``.
"""

import functools
import os
import random
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, TypedDict

import keras
import msgspec
import numpy as np
import tensorflow as tf
from msgspec import Meta
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from resilient.backends.arrays import (
    EXTENSION_DTYPES,
    HeldSnapshot,
    check_count,
    check_dtype,
    check_like,
    check_names,
    copy_array,
    spread_elements,
)
from resilient.backends.base import ALONE, Backend, Part, Snapshot
from resilient.backends.bundle import OBJECT_GRAPH, PREFIX, Bundle, name_of
from resilient.backends.bundle_entries import Entry
from resilient.backends.paths import plain
from resilient.backends.stored_files import Listed, StoredFiles, decoding
from resilient.errors import NotSupportedError

_CPU = "CPU:0"
_ALIGNED = 64  # bytes: what TensorFlow copies if it begins elsewhere
# Words of a generator's state, by algorithm: Philox, ThreeFry, what TensorFlow picks
_WORDS = {1: 3, 2: 2, 3: 3}


class _Generator(TypedDict):
    algorithm: Literal[1, 2, 3]
    state: list[Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]]


class _RandomState(TypedDict):
    seed: int | None
    operation_seeds: tuple[Any, ...] | None
    global_generator: _Generator | None


class TensorFlowBackend:
    """The adapter of TensorFlow."""

    name: ClassVar[str] = "tensorflow"
    divides: ClassVar[bool] = False
    compares: ClassVar[str] = f"{PREFIX}.data-*"

    def snapshot(
        self, tensors: Mapping[str, Any], reuse: Snapshot | None = None
    ) -> Snapshot:
        check_names(tensors)
        here = _here()
        held = {name: _hold(name, value, here) for name, value in tensors.items()}
        return HeldSnapshot(held, _write, _to_numpy)

    def read(
        self,
        directory: str,
        part: Part = ALONE,
        *,
        files: Mapping[str, Listed] | None = None,
    ) -> dict[str, np.ndarray]:
        stored = StoredFiles(directory, files)
        tensors = self._read(stored)
        if part.index:
            own = self._read(stored.inside(part.name))
            return {n: t for n, t in tensors.items() if n not in own} | own
        return tensors

    def _read(self, files: StoredFiles) -> dict[str, np.ndarray]:
        # Not with `RestoreV2`: pages of its memory are small, which doubles the work.
        with decoding(PREFIX):
            bundle = Bundle(files, PREFIX, texts={OBJECT_GRAPH})
            entries = bundle.entries
            names = {k: name for k in entries if (name := name_of(k)) is not None}
            rooms = {key: _room(entries[key]) for key in names}
            bundle.read_into({key: room.data for key, room in rooms.items()})
            return {
                names[key]: _shown(_tensor(room, entries[key]))
                for key, room in rooms.items()
            }

    def require_like(self, target: Any, value: np.ndarray) -> None:
        variable = target.value if isinstance(target, keras.Variable) else target
        check_like(target, variable.shape, variable.dtype.name, value)

    def assign(self, target: Any, value: np.ndarray) -> None:
        self.require_like(target, value)
        variable = target.value if isinstance(target, keras.Variable) else target
        # Keras's `Variable.assign` would cast. A tensor that was read is assigned
        # without a copy: nobody writes to it.
        tensor = _tensors.get(id(value))
        if tensor is None:
            tensor = tf.constant(value, dtype=variable.dtype)
        variable.assign(tensor)

    def random_state(self) -> dict[str, Any]:
        context = _eager_context()
        generator = _stateful_random_ops().global_generator
        # `_rng` exists only once a global seed was set.
        seeds = getattr(context, "_rng", None)
        return {
            "seed": None if context._seed is None else int(context._seed),
            "operation_seeds": None if seeds is None else seeds.getstate(),
            "global_generator": None
            if generator is None
            else {
                "algorithm": int(generator.algorithm),
                "state": generator.state.numpy().tolist(),
            },
        }

    def set_random_state(self, state: dict[str, Any]) -> None:
        # Also clears the cache of eager kernels, which have random state of their own.
        tf.random.set_seed(state["seed"])
        vars(_eager_context()).pop("_rng", None)  # as before any seed was set
        if state["operation_seeds"] is not None:
            _eager_context()._rng = random.Random()
            _eager_context()._rng.setstate(state["operation_seeds"])
        if state["global_generator"] is not None:
            _set_global_generator(**state["global_generator"])

    def check_random_state(self, state: dict[str, Any]) -> None:
        checked = msgspec.convert(state, _RandomState)
        if checked["operation_seeds"] is not None:
            random.Random().setstate(checked["operation_seeds"])
        generator = checked["global_generator"]
        if generator and len(generator["state"]) != _WORDS[generator["algorithm"]]:
            raise ValueError("the state of a different algorithm")

    def peek(self, tensor: Any, most: int) -> Callable[[], np.ndarray | None]:
        # Keras has read the loss of this step: no device is busy.
        array = spread_elements(_to_numpy(_hold("a tensor", tensor, _here())), most)
        return lambda: array

    def versions(self) -> dict[str, str]:
        return {"tensorflow": str(tf.__version__)}


def _room(entry: Entry) -> np.ndarray:
    """Memory for the bytes of a tensor that TensorFlow does not copy."""
    size = entry.place.stop - entry.place.start
    memory = np.empty(size + _ALIGNED, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNED
    return memory[start : start + size]


def _tensor(room: np.ndarray, entry: Entry) -> tf.Tensor:
    """The tensor that has these bytes, which nobody writes to."""
    array = room.view(np.dtype(entry.dtype)).reshape(entry.shape)
    with tf.device(_CPU):
        if entry.dtype in EXTENSION_DTYPES:
            return tf.constant(array)
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _shown(tensor: tf.Tensor) -> np.ndarray:
    """The array of a tensor that ``assign`` can do without."""
    array = _to_numpy(tensor)
    _tensors[id(array)] = tensor
    weakref.finalize(array, _tensors.pop, id(array))
    return array


# The tensors behind living arrays of ``_shown``. (Arrays cannot be keys.)
_tensors: dict[int, tf.Tensor] = {}


def _hold(name: str, value: Any, here: str) -> tf.Tensor:
    """The value, in memory of this host (``here``) that nobody writes to."""
    if isinstance(value, np.ndarray | np.generic):
        return _on_host(copy_array(name, np.asarray(value)))
    if isinstance(value, keras.Variable):
        value = value.value
    if not isinstance(value, tf.Tensor | tf.Variable):
        raise NotSupportedError(
            f"The tensor {name!r} has a type that a checkpoint cannot hold.",
            received=f"{type(value).__name__}",
            hint="Use dense tensors and variables of numbers or booleans.",
        )
    check_dtype(name, value.dtype.name)
    if isinstance(value, tf.distribute.DistributedValues):
        value = value.read_value()
    elif isinstance(value, tf.Variable):
        # A quarter of the time that `read_value` takes.
        value = tf.raw_ops.ReadVariableOp(resource=value.handle, dtype=value.dtype)
    # A parameter server's memory is another host's, and gone when that is.
    return value if value.device.startswith(here) else _on_host(value)


def _here() -> str:
    """The host and its kind of device: what a new tensor's name begins with."""
    return tf.constant(0).device.partition("device:")[0] + "device:CPU"  # type: ignore[no-any-return]


def _on_host(value: Any) -> tf.Tensor:
    with tf.device(_CPU):
        return tf.identity(value)


def _to_numpy(tensor: tf.Tensor) -> np.ndarray:
    """The tensor as a read-only array; not copied if it gives its buffer."""
    extension = tensor.dtype.name in EXTENSION_DTYPES
    array = np.asarray(tensor.numpy() if extension else memoryview(tensor))
    array.flags.writeable = False
    return array


def _write(tensors: Mapping[str, tf.Tensor], directory: str, part: Part) -> None:
    if part.index:
        directory = os.path.join(directory, part.name)
        os.mkdir(directory)
    check_count(len(tensors))
    names = [OBJECT_GRAPH, *map(_key, tensors)]
    with plain(directory) as path, tf.device(_CPU):
        graph = tf.constant(_object_graph(tuple(tensors)))
        tf.raw_ops.SaveV2(
            prefix=os.path.join(path, PREFIX),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[graph, *tensors.values()],
        )
    # For `tf.train.latest_checkpoint`. Relative: the directory will be renamed.
    with open(os.path.join(directory, "checkpoint"), "w", encoding="utf-8") as file:
        file.write(f'model_checkpoint_path: "{PREFIX}"\n')


@functools.lru_cache(8)  # names vary within a run: data and callbacks have tensors too
def _object_graph(names: tuple[str, ...]) -> bytes:
    """What ``tf.train.Checkpoint`` writes beside tensors of these names.

    With thousands of them it would take seconds, and hold the interpreter meanwhile.
    """
    graph = TrackableObjectGraph()
    root, tensors = graph.nodes.add(), graph.nodes.add()
    root.children.add(node_id=1, local_name="tensors")
    for number, name in enumerate(names, 2):
        tensors.children.add(node_id=number, local_name=name)
        graph.nodes.add().attributes.add(
            name="VARIABLE_VALUE", full_name="Variable", checkpoint_key=_key(name)
        )
    for node in graph.nodes:
        node.has_checkpoint_values.value = bool(names)
    return bytes(graph.SerializeToString(deterministic=True))


def _key(name: str) -> str:
    # tf.train.Checkpoint writes '.' as '..' (and '/' as '.S', which no name holds).
    return f"tensors/{name.replace('.', '..')}/.ATTRIBUTES/VARIABLE_VALUE"


def _set_global_generator(algorithm: int, state: list[int]) -> None:
    generator = _stateful_random_ops().global_generator
    if generator is not None and int(generator.algorithm) == algorithm:
        # In place: traced functions use its variable.
        generator.reset(state)
    else:
        tf.random.set_global_generator(tf.random.Generator.from_state(state, algorithm))


# All private names of TensorFlow. There is no public way to read the seed of eager
# operations, nor to ask for the global generator without creating it. A test in
# tests/state/test_rng.py fails by name when one of them vanishes.


def _eager_context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def _stateful_random_ops() -> ModuleType:
    from tensorflow.python.ops import stateful_random_ops

    return stateful_random_ops  # type: ignore[no-any-return]


BACKEND: Backend = TensorFlowBackend()
