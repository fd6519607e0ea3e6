"""An optimizer inside of another one counts in this backend's integers, too."""

from dataclasses import replace

import keras
import numpy as np
import pytest

import resilient
from resilient.backends import get_backend
from resilient.saving.record import PartReader
from resilient.storage.layout import committed_steps
from resilient.storage.store import Store
from resilient.training.fit.run import restore_model

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")


def scaled() -> keras.Model:
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    inner = keras.optimizers.Adam()
    net.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0), "mse")
    return net


@pytest.mark.spread
def test_its_variables_are_made_before_they_are_compared(tmp_path):
    """Keras makes them when the outer one is built: here, by the restore."""
    trained, x = scaled(), np.ones((8, 3), "float32")
    resilient.fit(
        trained, x, x[:, :1], batch_size=4, verbose=0, checkpoint_dir=tmp_path
    )
    store, step = Store(tmp_path), committed_steps(tmp_path)[-1]
    checkpoint, saved = store.load(step, PartReader(get_backend()))
    counts = [v for v in saved.run.variables if v["path"].endswith("iteration")]
    assert len(counts) == 2
    other = "int32" if counts[0]["dtype"] == "int64" else "int64"
    layout = [{**v, "dtype": other} if v in counts else v for v in saved.run.variables]
    tensors = {**saved.tensors}
    for each in counts:
        tensors[each["name"]] = np.asarray(tensors[each["name"]]).astype(other)
    run = replace(saved.run, variables=layout)
    elsewhere = replace(saved, run=run, tensors=tensors, saver="another")
    net = scaled()
    restore_model(net, (checkpoint, elsewhere))
    inner = net.optimizer.inner_optimizer
    assert int(inner.iterations.value) == int(net.optimizer.iterations.value) == 2
