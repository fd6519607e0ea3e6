"""What somebody else wrote into a checkpoint ends in an error of ours."""

import json
import shutil

import keras
import numpy as np
import pytest
from support import manifests

import resilient

X = np.random.RandomState(0).rand(32, 3).astype("float32")
STEP = "step-00000002"


class Kill(keras.callbacks.Callback):
    def __init__(self, *, kills):
        super().__init__()
        self.kills = kills

    def on_train_batch_end(self, batch, logs=None):
        if self.kills and batch == 2:
            raise KeyboardInterrupt


def fit(directory, *, kills=False):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    resilient.fit(
        *(model, X, X[:, :1]),
        callbacks=[Kill(kills=kills)],
        checkpoint_dir=directory,
        save_freq=resilient.every(steps=2),
        resume=2 if (directory / STEP).exists() else "auto",
        batch_size=8,
        verbose=0,
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    with pytest.raises(KeyboardInterrupt):
        fit(directory, kills=True)
    return directory / STEP


@pytest.mark.parametrize("key", ["x", "source", "drawn_from"])
def test_a_position_without_what_it_needs_is_an_error_of_ours(
    checkpoint, tmp_path, key
):
    def without(said):
        return json.loads(json.dumps(said).replace(f'["{key}", ', '["unknown", '))

    _try(checkpoint, tmp_path, "data/process-0-of-1.json", without)


def _try(checkpoint, tmp_path, name, change):
    copy = tmp_path / STEP
    shutil.copytree(checkpoint, copy)
    said = json.loads((copy / name).read_text())
    assert change(said) != said
    manifests.replace(copy, name, json.dumps(change(said)).encode())
    with pytest.raises(resilient.CorruptCheckpointError):
        fit(tmp_path)
