"""A digest of all that a checkpoint would hold, leaf by leaf.

Two states with equal digests have the same bytes. Where they differ, the digest names
the leaves: variables, and those parts of ``run.json`` that are a run's state, and not
what it was found to be (its environment, or what was compiled). The position of the
data is a leaf, too, but does not count: the same place can be described in two ways.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from resilient.saving.record import PendingCheckpoint
from resilient.serialization import JSON
from resilient.serialization.schema import to_json

# Of both kinds of runs; the callbacks and the objects of a loop are leaves each.
_STATE = (
    *("progress", "stop_training", "epoch_logs", "stateful", "losses", "attributes"),
    *("stopped", "history"),
)
_POSITION = "data"
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


def digest(content: PendingCheckpoint) -> Digest:
    """The digest of a snapshot."""
    whole, names, leaves = xxhash.xxh3_128(), [], []
    for name, value in _leaves(content):
        found = _hashed(value)
        if name != _POSITION:
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
    """The digest of a batch: of every array in it, in their order."""
    import keras

    whole = xxhash.xxh3_128()
    for each in keras.tree.flatten(batch):
        array = keras.ops.convert_to_numpy(each) if hasattr(each, "dtype") else each
        whole.update(_hashed(np.asarray(array)))
    return whole.hexdigest()


def _leaves(content: PendingCheckpoint) -> Iterator[tuple[str, Any]]:
    run = to_json(content.run)
    paths = {each["name"]: each["path"] for each in run["variables"]}
    for name, array in sorted(content.snapshot.arrays.items()):
        # Of a variable that each replica has, the suffix says whose it is.
        of = next((n for n in (name, name.rpartition(".")[0]) if n in paths), None)
        if of is None:
            yield f"arrays/{name}", array
        else:
            yield f"variables/{paths[of]}{name[len(of) :]}", array
    yield _POSITION, content.position
    for name in _STATE:
        if name in run:
            yield name, run[name]
    yield from _each("random", run.get("random", {}))
    yield from _each("objects", run.get("objects", {}))
    for number, callback in enumerate(run.get("callbacks", ())):
        yield f"callbacks/{number}/{callback['class']}", callback


def _each(name: str, found: JSON) -> Iterator[tuple[str, Any]]:
    for key, value in found.items():
        yield f"{name}/{key}", value


def _hashed(value: Any) -> bytes:
    if not isinstance(value, np.ndarray):
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
        return xxhash.xxh3_64_digest(text.encode(errors="surrogatepass"))
    about = f"{value.dtype}{value.shape}".encode()
    if value.dtype == object:
        return xxhash.xxh3_64_digest(about + repr(value.tolist()).encode())
    found = xxhash.xxh3_64(about)
    found.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return found.digest()
