"""A digest of the state that a checkpoint would hold, leaf by leaf.

Two states with equal digests have the same bytes. Where they differ, the digest names
the leaves: variables, and what ``compare.facts`` calls state; clocks are left out. The
position of the data is a leaf too, but does not count: the same place can be described
in two ways.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from resilient.backends.base import Shards
from resilient.saving.compare import facts
from resilient.saving.record import SavedState
from resilient.saving.snapshot import Snapshot
from resilient.serialization.batches import checksum
from resilient.serialization.json_arrays import as_bytes

POSITION = "data"
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


def digest(snapshot: Snapshot) -> Digest:
    """The digest of a snapshot."""
    return _digest(_leaves(snapshot))


def of_variables(
    layout: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]
) -> Digest:
    """The digest of variables alone.

    Args:
        layout: Their names and paths, as in a checkpoint.
        arrays: Their values by name.
    """
    return _digest(_tensors(layout, arrays))


def _digest(named: Iterable[tuple[str, Any]]) -> Digest:
    whole, names, leaves = xxhash.xxh3_128(), [], []
    for name, value in named:
        found = _hashed(value)
        if name != POSITION:
            whole.update(found)  # not the name: Keras makes up new ones
        names.append(name)
        leaves.append(found.hex()[:_HEX])
    return Digest(whole.hexdigest(), tuple(names), "".join(leaves))


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

    from resilient.keras_internals.strategies import of_each_replica

    return checksum(keras.tree.map_structure(of_each_replica, batch))


def _leaves(snapshot: Snapshot) -> Iterator[tuple[str, Any]]:
    arrays = snapshot.tensors.arrays
    process = SavedState(snapshot.run, snapshot.position, arrays)
    sections = facts.of_process(process)
    position = sections.pop(POSITION)
    inside, left_out = set(_referred(position)), set[str]()
    for section in facts.NOT_STATE:
        left_out |= set(_referred(sections.pop(section, {})))
    left_out |= inside
    yield from _tensors(
        snapshot.run.variables, {n: a for n, a in arrays.items() if n not in left_out}
    )
    yield POSITION, [position, {n: _hashed(arrays[n]).hex() for n in inside}]
    for name, state in sections.pop("random").items():
        sections["/".join(filter(None, ("random", name)))] = state
    for section, values in sections.items():
        for name, value in values.items():
            yield "/".join(filter(None, (section, name))), value


def _tensors(
    layout: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    paths = {each["name"]: each["path"] for each in layout}
    for name, array in sorted(arrays.items()):
        # Of a variable that each replica has, the suffix says whose it is.
        of = next((n for n in (name, name.rpartition(".")[0]) if n in paths), None)
        if of is None:
            yield f"arrays/{name}", array
        else:
            yield f"variables/{paths[of]}{name[len(of) :]}", array


def _referred(value: Any) -> Iterator[str]:
    """The names of the arrays that an encoded value refers to."""
    if isinstance(value, dict) and value.keys() >= {"array", "dtype", "shape"}:
        yield value["array"]
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _referred(each)


def _hashed(value: Any) -> bytes:
    if isinstance(value, Shards):
        found = xxhash.xxh3_64(f"{value.dtype}{value.shape}".encode())
        for place, piece in sorted(value.owned.items()):
            found.update(f"{place}".encode() + _hashed(np.asarray(piece)))
        return found.digest()
    if not isinstance(value, np.ndarray):
        text = json.dumps(value, sort_keys=True, ensure_ascii=False)
        return xxhash.xxh3_64_digest(text.encode(errors="surrogatepass"))
    found = xxhash.xxh3_64(f"{value.dtype}{value.shape}".encode())
    found.update(as_bytes(value).data)
    return found.digest()
