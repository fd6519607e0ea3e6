"""Resumed between two epochs: is it the same data, and where is the validation data."""

import contextlib

import grain
import keras
import numpy as np
import pytest
import torch

import resilient
from resilient.errors import DataNotResumableError, NotExactWarning

pytestmark = [
    pytest.mark.spread,
    pytest.mark.waits,
    pytest.mark.sources,
    # On PyTorch Keras gives tensors as logs where NumPy's warning is an error.
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
]

X = np.random.RandomState(0).rand(40, 4).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Batches(keras.utils.PyDataset):
    """Reshuffles in place at each epoch's end; counts what it is asked."""

    def __init__(self, x=X, level=1.0):
        super().__init__()
        self.x = x
        self.order = np.arange(40)
        self.random = np.random.default_rng(1)
        self.level = level
        self.asked = 0

    def __len__(self):
        return 5

    def __getitem__(self, index):
        self.asked += 1
        rows = self.order[index * 8 :][:8]
        return self.x[rows] * np.float32(self.level), Y[rows]

    def on_epoch_end(self):
        self.random.shuffle(self.order)


class Plain(keras.utils.PyDataset):
    def __init__(self, x):
        super().__init__()
        self.x = x

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return self.x[index * 8 :][:8], Y[index * 8 :][:8]


class Rows(torch.utils.data.Dataset):
    def __init__(self, x=X, level=1.0):
        self.x = x
        self.level = level

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return self.x[index] * np.float32(self.level), Y[index]


def loader(dataset):
    return torch.utils.data.DataLoader(dataset, batch_size=8)


def maps(x):
    source = grain.MapDataset.source([(x[i], Y[i]) for i in range(40)])
    return source.seed(1).shuffle().batch(8)


class Stop(keras.callbacks.Callback):
    """Raises in the middle of an epoch; before, it sets a level for the validation."""

    def __init__(self, data=None, epoch=None):
        super().__init__()
        self._data, self._epoch = data, epoch

    def on_epoch_begin(self, epoch, logs=None):
        if self._data is not None and epoch != 1:  # so that epoch 1 keeps that of 0
            self._data.level = 2.0 + epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.params["epochs"], batch) == (4, 2) and self._now == self._epoch:
            raise KeyboardInterrupt

    def on_epoch_end(self, epoch, logs=None):
        self._now = epoch + 1

    def on_train_begin(self, logs=None):
        self._now = 0


def fit(x, directory=None, stop=None, **options):
    """History of four epochs, unless it is interrupted in epoch ``stop``."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
    validation = options.get("validation_data")
    data = getattr(validation, "dataset", validation)
    arguments = {"epochs": 4, "verbose": 0, **options}
    arguments["callbacks"] = [Stop(data if hasattr(data, "level") else None, stop)]
    if directory is None:
        return model.fit(x, **arguments).history
    with contextlib.suppress(KeyboardInterrupt):
        arguments |= {"checkpoint_dir": directory}
        return resilient.fit(model, x, **arguments).history
    return None


@pytest.mark.parametrize("make", [Plain, lambda x: loader(Rows(x)), maps])
def test_changed_data_is_noticed_at_an_epochs_end(tmp_path, make):
    """Of what was trained after it, in the killed attempt and once more."""
    fit(make(X), tmp_path, stop=2)
    if keras.backend.backend() == "tensorflow":  # where Python sees no batch
        with pytest.warns(NotExactWarning, match="does not repeat the killed one"):
            fit(make(-5 * X), tmp_path)
        return
    with pytest.raises(DataNotResumableError, match="Other data is trained after"):
        fit(make(-5 * X), tmp_path)
    assert fit(make(X), tmp_path) == fit(make(X))


def test_what_the_end_of_an_epoch_changes_is_not_taken_for_other_data(tmp_path):
    expected = fit(Batches())
    fit(Batches(), tmp_path, stop=2)
    fit(Batches(), tmp_path, stop=3)
    assert fit(Batches(), tmp_path) == expected


@pytest.mark.parametrize("make", [Batches, lambda: loader(Rows())])
def test_validation_data_that_callbacks_change(tmp_path, make):
    """What they set before the first evaluation after a resume is not undone.

    Nor is lost what they set before the first evaluation of the run.
    """
    expected = fit(Plain(X), validation_data=make())
    for stop in (1, 2, 3):
        fit(Plain(X), tmp_path, stop=stop, validation_data=make())
    assert fit(Plain(X), tmp_path, validation_data=make()) == expected


@pytest.mark.parametrize("save_freq", ["epoch", 1])
def test_one_dataset_for_training_and_validation(tmp_path, save_freq):
    both = Batches()
    expected = fit(both, validation_data=both)
    for stop in (1, 2):
        both = Batches()
        fit(both, tmp_path, stop, validation_data=both, save_freq=save_freq)
    both = Batches()
    assert fit(both, tmp_path, validation_data=both, save_freq=save_freq) == expected


def test_other_validation_data_begins_anew_and_is_said(tmp_path):
    fit(Plain(X), tmp_path, stop=2, validation_data=Plain(X))
    with pytest.warns(NotExactWarning, match="the validation data changed since"):
        history = fit(Plain(X), tmp_path, validation_data=loader(Rows()))
    assert len(history["val_loss"]) == 4
