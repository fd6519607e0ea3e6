"""What Keras and safetensors wrote, to start a run from."""

import io
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import h5py
import keras
import numpy as np
from support.fitting import model, values

from resilient.convert import hdf5_files
from resilient.convert.recognise import recognised
from resilient.state.variables import leaves
from resilient.state.weights import ready

from . import formats, mutations
from .target import Files, Target

BACKEND = keras.backend.backend()
HDF5, KERAS, SAFE = "x.weights.h5", "x.keras", "x.safetensors"

hdf5_files.SECONDS = 5.0  # a hang is no news, and takes as long as that

Mutate = Callable[[bytes, Random], bytes]


def targets() -> list[Target]:
    """Each kind of file."""
    net = model()
    ready(net)
    return [
        _file(net, HDF5, _saved(net, HDF5), [hdf5, addresses]),
        _file(net, KERAS, _saved(net, KERAS), [formats.zip_file]),
        _file(net, SAFE, _safe(net), [formats.safetensors]),
    ]


def _target(
    net: keras.Model, name: str, path: str, files: Files, mutate: Callable[..., Files]
) -> Target:
    before = _bytes(net)

    def read(files: Files) -> None:
        for inner, content in files.items():
            Path(inner).parent.mkdir(parents=True, exist_ok=True)
            Path(inner).write_bytes(content)
        try:
            recognised(Path(path).absolute()).values(net)
        finally:
            assert _bytes(net) == before, "the model is another one"

    return Target(name, files, mutate, read, stays=False, share=0.7)


def _bytes(net: keras.Model) -> list[bytes]:
    return [np.asarray(each).tobytes() for each in values(net)]


def _file(
    net: keras.Model, path: str, content: bytes, known: Sequence[Mutate]
) -> Target:
    def mutate(random: Random) -> Files:
        change = random.choice((*known, *known, mutations.mutated))
        return {path: change(content, random)}

    name = f"{BACKEND} import of {path}"
    return _target(net, name, path, {path: content}, mutate)


def _saved(net: keras.Model, name: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, name)
        (net.save if name == KERAS else net.save_weights)(path)
        return path.read_bytes()


def _named(net: keras.Model) -> dict[str, np.ndarray]:
    return {
        leaf.path: np.asarray(keras.ops.convert_to_numpy(leaf.target.value))
        for leaf in leaves(net)
        if leaf.path in {v.path for v in net.weights}
    }


def _safe(net: keras.Model) -> bytes:
    from safetensors.numpy import save

    return bytes(save(_named(net)))


def hdf5(raw: bytes, random: Random) -> bytes:
    """Another file in which h5py wrote what Keras does not."""
    file = io.BytesIO(raw)
    with h5py.File(file, "r+") as opened:
        names: list[str] = []
        opened.visit(names.append)
        datasets = [n for n in names if isinstance(opened[n], h5py.Dataset)]
        for _ in range(random.choice((1, 1, 2))):
            name = random.choice(datasets if random.random() < 0.7 else names)
            if name in opened:
                random.choice(_HDF5)(opened, name, random)
    return file.getvalue()


def addresses(raw: bytes, random: Random) -> bytes:
    """What may be an address in an HDF5 file is another one in it."""
    words = [struct.unpack_from("<Q", raw, at)[0] for at in range(len(raw) - 8)]
    at = [k for k, word in enumerate(words) if 48 <= word < len(raw)]
    changed = bytearray(raw)
    for _ in range(random.choice((1, 1, 2))):
        struct.pack_into("<Q", changed, random.choice(at), words[random.choice(at)])
    return bytes(changed)


def _delete(file: h5py.File, name: str, random: Random) -> None:
    del file[name]


def _another(file: h5py.File, name: str, random: Random) -> None:
    del file[name]
    dtype = random.choice(("f4", ">f8", "S3", "i8", "c8", "u1", "f2", "?"))
    shape = random.choice(((), (0,), (1,), (2, 2), (1 << 40,), (1 << 31, 3)))
    chunks = tuple(min(n, 64) for n in shape) if shape and all(shape) else None
    file.create_dataset(name, shape, dtype, chunks=chunks)


def _compressed(file: h5py.File, name: str, random: Random) -> None:
    del file[name]
    file.create_dataset(name, data=np.zeros(99), compression="gzip", shuffle=True)


def _link(file: h5py.File, name: str, random: Random) -> None:
    del file[name]
    file[name] = random.choice(
        (
            h5py.SoftLink("/"),
            h5py.SoftLink(f"/{name}"),
            h5py.ExternalLink("../canary", "/"),
            h5py.Empty("f4"),
        )
    )


def _itself(file: h5py.File, name: str, random: Random) -> None:
    file[f"{name}_more" if "/" in name else "more"] = file["/"]


def _attribute(file: h5py.File, name: str, random: Random) -> None:
    value = random.choice(("bfloat16", "object", "x" * 99, 3, np.zeros(5), [b"a"], ""))
    file[name].attrs[random.choice(("dtype", "name", "shape"))] = value


def _external(file: h5py.File, name: str, random: Random) -> None:
    del file[name]
    file.create_dataset(name, (2,), "f4", external=[("../canary", 0, 8)])


_HDF5 = (_delete, _another, _compressed, _link, _itself, _attribute, _external)
