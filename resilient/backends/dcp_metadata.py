"""What ``.metadata`` says of a distributed checkpoint (DCP) of torch, checked.

It is a pickle of torch's objects, of which none is made. Tensors may be cut into
chunks; of each it says in which file it is, and where.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilient.backends import inert_pickle
from resilient.backends.inert_pickle import Made
from resilient.backends.stored_files import corrupt
from resilient.backends.torch_files import dtype, shape, sizes

_CHECKPOINT = "torch.distributed.checkpoint"


@dataclass(frozen=True)
class Chunk:
    """A piece of a tensor: where in it, and where in a file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    place: slice


@dataclass(frozen=True)
class SavedTensor:
    """A tensor, and the chunks that it is in, which leave no gap."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[Chunk, ...]


def parse(metadata: bytes, files: Mapping[str, int]) -> dict[str, SavedTensor]:
    """The tensors by name.

    Args:
        metadata: The file.
        files: Sizes of the files that there are.

    Raises:
        ValueError: It is damaged, or of something else than dense tensors.
        CorruptCheckpointError: It does not match the files.
    """
    fields = _fields(inert_pickle.read(metadata), "metadata.Metadata")
    places = dict(_places(fields["storage_data"], files))
    if sum(at.stop - at.start for _, at in places.values()) > sum(files.values()):
        raise corrupt("its tensors are larger than the files")
    return {
        _text(name): _tensor(_text(name), each, places)
        for name, each in fields["state_dict_metadata"].items()
    }


def _fields(made: object, name: str) -> dict[str, Any]:
    """The attributes of a dataclass of DCP's."""
    if (
        not isinstance(made, Made)
        or made.name != f"{_CHECKPOINT}.{name}"
        or not isinstance(made.state, dict)
    ):
        raise ValueError(f"something else is where {name} should be")
    return made.state


def _text(value: object) -> str:
    # Tuples of tuples may take forever to be shown, or to be hashed.
    if not isinstance(value, str):
        raise ValueError(f"there is a {type(value).__name__} where a name should be")
    return value


def _size(made: object) -> tuple[int, ...]:
    if not isinstance(made, Made) or made.name != "torch.Size":
        raise ValueError("a tensor has no size")
    (size,) = made.arguments
    return shape(size)


# The name of a tensor and the offset of a chunk, and the file and the place in it.
_Place = tuple[tuple[str, tuple[int, ...]], tuple[str, slice]]


def _places(data: Mapping[Any, Any], files: Mapping[str, int]) -> Iterator[_Place]:
    for key, value in data.items():
        index = _fields(key, "metadata.MetadataIndex")
        info = _fields(value, "filesystem._StorageInfo")
        start, length = sizes((info["offset"], info["length"]))
        name, file = _text(index["fqn"]), _text(info["relative_path"])
        if start + length > files.get(file, -1):
            raise corrupt(f"{name!r} is not in any file: {file!r}")
        if info.get("transform_descriptors"):
            raise corrupt(f"{name!r} is compressed or encrypted")
        where = (name, _size(index["offset"]))
        yield where, (file, slice(start, start + length))


def _tensor(name: str, made: object, places: Mapping[Any, Any]) -> SavedTensor:
    fields = _fields(made, "metadata.TensorStorageMetadata")
    properties = fields["properties"]
    if not isinstance(properties, Made) or not isinstance(properties.state, tuple):
        raise ValueError("a tensor has no dtype")
    whole, of = _size(fields["size"]), dtype(properties.state[0])
    chunks = []
    for each in fields["chunks"]:
        chunk = _fields(each, "metadata.ChunkStorageMetadata")
        offsets, size = _size(chunk["offsets"]), _size(chunk["sizes"])
        file, place = places[name, offsets]
        if math.prod(size) * of.itemsize > place.stop - place.start:
            raise corrupt(f"{name} is larger than its part of {file}")
        chunks.append(Chunk(offsets, size, file, place))
    if not _is_covered(whole, [chunk for chunk in chunks if math.prod(chunk.sizes)]):
        raise corrupt(f"{name} has gaps, or parts that overlap")
    return SavedTensor(whole, of, tuple(chunks))


def _is_covered(shape: tuple[int, ...], chunks: list[Chunk]) -> bool:
    """Whether chunks are the cells of a grid: no gap, and no overlap."""
    if any(not len(c.offsets) == len(c.sizes) == len(shape) for c in chunks):
        return False
    if not math.prod(shape):
        return not chunks
    cells = 1
    for dimension, size in enumerate(shape):
        cuts = {(c.offsets[dimension], c.sizes[dimension]) for c in chunks}
        ends = [0, *(start + length for start, length in sorted(cuts))]
        if [start for start, _ in sorted(cuts)] != ends[:-1] or ends[-1] != size:
            return False
        cells *= len(cuts)
    return cells == len(chunks) == len({chunk.offsets for chunk in chunks})
