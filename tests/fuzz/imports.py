"""What another program wrote with safetensors, to start a run from."""

import struct
from pathlib import Path
from random import Random

import keras
import numpy as np
from support.fitting import model, values

from resilient.convert.sources import find
from resilient.state.variables import leaves

from . import mutations, trees
from .target import Files, Target

FILE = "x.safetensors"


def targets() -> list[Target]:
    """The file; those of Keras are libhdf5's, which may crash on others."""
    from safetensors.numpy import save

    net = model()
    raw, before = bytes(save(_named(net))), _bytes(net)

    def mutate(random: Random) -> Files:
        change = random.choice((_another_header, mutations.mutated))
        return {FILE: change(raw, random)}

    def read(files: Files) -> None:
        Path(FILE).write_bytes(files[FILE])
        try:
            find(Path(FILE).absolute()).tensors(net, {})
        finally:
            assert _bytes(net) == before, "the model is another one"

    name = f"{keras.backend.backend()} import of {FILE}"
    return [Target(name, {FILE: raw}, mutate, read, stays=False, share=0.7)]


def _another_header(raw: bytes, random: Random) -> bytes:
    (length,) = struct.unpack("<Q", raw[:8])
    header = trees.mutated(raw[8 : 8 + length], random, trees.compact)
    return struct.pack("<Q", len(header)) + header + raw[8 + length :]


def _bytes(net: keras.Model) -> list[bytes]:
    return [np.asarray(each).tobytes() for each in values(net)]


def _named(net: keras.Model) -> dict[str, np.ndarray]:
    return {
        leaf.path: np.asarray(keras.ops.convert_to_numpy(leaf.target.value))
        for leaf in leaves(net)
        if leaf.path in {v.path for v in net.weights}
    }
