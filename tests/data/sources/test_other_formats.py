"""Files of every library, written from a run and read again, on every backend."""

import keras
import numpy as np
import pytest
from support.fitting import interrupted
from support.fitting import model as new_model

import resilient
from resilient import NotExactWarning

pytestmark = [
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
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("formats") / "run"
    interrupted(directory, 1, None, net=model())
    net = model(seed=1)
    resilient.ResilientFit(net, checkpoint_dir=directory).restore()
    return directory, arrays(net)


def of_tensorflow(path):
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(path))
    return {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}


def of_orbax(path):
    import orbax.checkpoint

    return orbax.checkpoint.PyTreeCheckpointer().restore(path)


def of_torch(path):
    import torch

    tensors = torch.load(path, weights_only=True)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("name", "read"), [("tf", of_tensorflow), ("orbax", of_orbax), ("x.pt", of_torch)]
)
def test_each_backend_writes_and_reads_the_files_of_the_others(
    run, tmp_path, name, read
):
    directory, expected = run
    target = resilient.export(directory, tmp_path / name)
    found = read(target)
    for value, path in zip(expected, paths(), strict=True):
        assert (value.dtype, value.tobytes()) == (
            *(found[path].dtype, np.asarray(found[path]).tobytes()),
        )
    with pytest.warns(NotExactWarning, match="begin anew"):
        resilient.import_checkpoint(
            target, model(), checkpoint_dir=tmp_path / "again", epoch=2
        )
    net = model(seed=2)
    resilient.ResilientFit(net, checkpoint_dir=tmp_path / "again").restore()
    for old, new in zip(expected, arrays(net), strict=True):
        assert (old.dtype, old.tobytes()) == (new.dtype, new.tobytes())


def paths():
    net = model()
    net.optimizer.build(net.trainable_variables)
    return [v.path for v in [*net.weights, *net.optimizer.variables]]
