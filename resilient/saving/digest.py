"""A digest of the state that a checkpoint would hold, leaf by leaf.

Two states with equal digests have the same bytes. Where they differ, the digest names
the ``leaves``: the batches that led there, variables, and other values but clocks. The
position of the data is one too, but does not count: the same place can be described in
two ways.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import xxhash

from resilient.backends.arrays import as_bytes
from resilient.saving import leaves
from resilient.saving.record import SavedState
from resilient.saving.snapshot import Snapshot
from resilient.serialization import Encoded
from resilient.serialization.batches import checksum

BATCH, POSITION = "batch", "data"
_HEX = 8  # digits that a leaf's digest has in an event


@dataclass(frozen=True)
class Digest:
    """The digest of one state.

    Attributes:
        whole: The digest of all leaves that count, 32 hexadecimal digits.
        names: Names of the leaves, such as ``variables/dense/kernel``, in order.
        leaves: The digests of the leaves, 8 hexadecimal digits each, joined.
    """

    whole: str
    names: tuple[str, ...]
    leaves: str


def digest(snapshot: Snapshot, batches: Sequence[str] = ()) -> Digest:
    """The digest of a snapshot.

    Args:
        snapshot: The state.
        batches: Checksums of the batches that were trained last; they are a leaf if
            there are any.
    """
    arrays = snapshot.tensors.arrays
    process = SavedState(snapshot.run, snapshot.position, arrays)
    values = (
        ("/".join(filter(None, place)), _of_value(value, arrays))
        for place, value in leaves.values_of(process).items()
        if place[0] != leaves.CLOCKS
    )
    drawn = [(BATCH, xxhash.xxh3_64_digest(" ".join(batches).encode()))]
    variables = _of_variables(snapshot.run.variables, arrays)
    return _digest(chain(drawn[: len(batches)], variables, values))


def of_variables(
    layout: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]
) -> Digest:
    """The digest of variables alone.

    Args:
        layout: Their names and paths, as in a checkpoint.
        arrays: Their values by name.
    """
    return _digest(_of_variables(layout, arrays))


def _digest(named: Iterable[tuple[str, bytes]]) -> Digest:
    whole, names, short = xxhash.xxh3_128(), [], []
    for name, found in named:
        if name != POSITION:
            whole.update(found)  # not the name: Keras makes up new ones
        names.append(name)
        short.append(found.hex()[:_HEX])
    return Digest(whole.hexdigest(), tuple(names), "".join(short))


def differing(names: tuple[str, ...], a: str, b: str) -> list[str]:
    """Names of the leaves that differ between two digests of the same names."""
    return [
        name
        for at, name in enumerate(names)
        if a[at * _HEX : (at + 1) * _HEX] != b[at * _HEX : (at + 1) * _HEX]
    ]


def of_batch(batch: Any) -> str:
    """The digest of a batch: of every array in it, in their order.

    Raises:
        NotSupportedError: It contains something that is not an array.
    """
    import keras

    from resilient.keras_internals.replicas import of_each_replica

    return checksum(keras.tree.map_structure(of_each_replica, batch))


def _of_variables(
    layout: Sequence[Mapping[str, Any]], arrays: Mapping[str, Any]
) -> Iterator[tuple[str, bytes]]:
    for _, path, tensor in leaves.variables_of(layout, arrays):
        yield f"variables/{path}", _of_tensor(tensor)


def _of_tensor(tensor: Any) -> bytes:
    """The digest of an array, or of the shards of one that this process holds."""
    found = xxhash.xxh3_64(f"{tensor.dtype}{tensor.shape}".encode())
    if isinstance(tensor, np.ndarray):
        found.update(as_bytes(tensor).data)
    else:
        for place, piece in sorted(tensor.owned.items()):
            found.update(f"{place}".encode() + _of_tensor(np.asarray(piece)))
    return found.digest()


def _of_value(value: Encoded, arrays: Mapping[str, Any]) -> bytes:
    found = xxhash.xxh3_64()
    for path, part in leaves.parts_of("", value, arrays):
        found.update(f"{path}\0".encode(errors="surrogatepass"))
        is_array = isinstance(part, np.ndarray)
        found.update(_of_tensor(part) if is_array else repr(part).encode())
    return found.digest()
