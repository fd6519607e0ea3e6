"""Files of every library are read on every backend."""

import keras
import numpy as np
import pytest
from support.fitting import arguments
from support.fitting import model as new_model

import resilient
from resilient import NotExactWarning

pytestmark = [
    pytest.mark.waits,
    pytest.mark.sources,
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),
]


def model(**given):
    """A model with the names that it has in a process of its own."""
    keras.utils.clear_session(free_memory=False)
    return new_model(**given)


def arrays(net):
    variables = [*net.weights, *net.optimizer.variables]
    return [np.asarray(keras.ops.convert_to_numpy(v.value)) for v in variables]


@pytest.fixture(scope="module")
def trained():
    """Weights and optimizer after two epochs of Keras's own fit."""
    net = model()
    net.fit(**arguments(epochs=2))
    return arrays(net)


def as_tensorflow(tensors, path):
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=str(path / "ckpt"),
        tensor_names=[*tensors],
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(each) for each in tensors.values()],
    )
    return path / "ckpt"


def as_orbax(tensors, path):
    import orbax.checkpoint

    orbax.checkpoint.PyTreeCheckpointer().save(path / "tree", tensors)
    return path / "tree"


def as_torch(tensors, path):
    import torch

    # Copies: arrays that Keras gives may be read-only.
    content = {n: torch.from_numpy(np.array(each)) for n, each in tensors.items()}
    torch.save(content, path / "x.pt")
    return path / "x.pt"


@pytest.mark.parametrize("write", [as_tensorflow, as_orbax, as_torch])
def test_each_backend_reads_the_files_of_the_others(trained, tmp_path, write):
    source = write(dict(zip(paths(), trained, strict=True)), tmp_path)
    with pytest.warns(NotExactWarning, match="start from scratch"):
        resilient.import_checkpoint(
            source, model(), checkpoint_dir=tmp_path / "run", epoch=2
        )
    net = model(seed=2)
    resilient.ResilientFit(net, checkpoint_dir=tmp_path / "run").restore()
    for old, new in zip(trained, arrays(net), strict=True):
        assert (old.dtype, old.tobytes()) == (new.dtype, new.tobytes())


def paths():
    net = model()
    net.optimizer.build(net.trainable_variables)
    return [v.path for v in [*net.weights, *net.optimizer.variables]]
