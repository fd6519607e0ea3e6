"""What a snapshot writes, the format's own tool reads, without anything of ours."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.tensor_cases import differing, every_dtype_and_shape

from resilient.backends import Backend
from resilient.backends.arrays import EXTENSION_DTYPES

Arrays = dict[str, np.ndarray]


def with_load_checkpoint(directory: Path, _: Arrays) -> Arrays:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(directory / "state"))
    return {
        name: np.asarray(reader.get_tensor(name))
        for name in reader.get_variable_to_shape_map()
    }


def with_pytree_checkpointer(directory: Path, _: Arrays) -> Arrays:
    import orbax.checkpoint as ocp

    return dict(ocp.PyTreeCheckpointer().restore(directory / "state"))


def with_standard_checkpointer(directory: Path, expected: Arrays) -> Arrays:
    import orbax.checkpoint as ocp

    like = {name: np.zeros_like(v) for name, v in expected.items()}
    with ocp.StandardCheckpointer() as checkpointer:
        return dict(checkpointer.restore(directory / "state", like))


def with_torch_load(directory: Path, _: Arrays) -> Arrays:
    import torch

    def array(tensor: "torch.Tensor") -> np.ndarray:
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in EXTENSION_DTYPES:
            return tensor.numpy()
        carrier = torch.int16 if tensor.itemsize == 2 else torch.int8
        return tensor.view(carrier).numpy().view(EXTENSION_DTYPES[name])

    read = torch.load(directory / "state.pt", weights_only=True)
    return {name: array(tensor) for name, tensor in read.items()}


TOOLS: dict[str, list[Callable[[Path, Arrays], Arrays]]] = {
    "tensorflow": [with_load_checkpoint],
    "jax": [with_pytree_checkpointer, with_standard_checkpointer],
    "torch": [with_torch_load],
}


@pytest.mark.parametrize("number", [0, 1], ids=["first-tool", "second-tool"])
def test_the_formats_own_tool_reads_every_byte(
    adapter: Backend, tmp_path: Path, number: int
) -> None:
    """Names, dtypes, shapes and bytes, of arrays without elements, too."""
    tools = TOOLS[adapter.name]
    if number >= len(tools):
        pytest.skip("this format has one tool")
    arrays = every_dtype_and_shape()
    adapter.snapshot(arrays).write(str(tmp_path))
    assert differing(tools[number](tmp_path, arrays), arrays) == []
