"""``run.loop`` on every source of data: the same batches, from any batch on."""

import itertools

import grain
import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import resilient
from resilient.backends.arrays import as_bytes

pytestmark = [pytest.mark.sources, pytest.mark.waits]

SAMPLES, BATCH = 22, 4
X = np.arange(SAMPLES, dtype="float32").reshape(-1, 1)


class Rows(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"x": X[index], "noise": torch.rand(1)}


class Pairs(Rows):
    def __getitem__(self, index):
        return X[index], -X[index]


class Own(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return X[index * 4 : index * 4 + 4], np.full((1,), index)


class Counting:
    """An iterable with the two methods."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 6:
            self.at += 1
            yield X[self.at - 1 : self.at + 2], np.full((3,), self.at)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def tf_data():
    dataset = tf.data.Dataset.from_tensor_slices({"x": X, "i": np.arange(SAMPLES)})
    return dataset.shuffle(SAMPLES, seed=3).batch(BATCH)


def endless():
    numbers = np.random.default_rng(3)
    while True:
        yield X[numbers.integers(0, SAMPLES, BATCH)], numbers.random(1)


class CountingLists(Counting):
    """The same, of what Keras does not take."""

    def __iter__(self):
        return ([x, {"of": x[0]}] for x, _ in super().__iter__())


def cycle(source):
    """Draws from torch's generator in each epoch of the source, as the loop does."""
    while True:
        yield from source


def anything():
    """Draws from global generators in turn with the loop; a new structure each time."""
    for number in itertools.count():
        drawn = np.random.rand(2), torch.rand(1)
        yield from (list(drawn), {"x": drawn[0], "deep": [drawn, "text"]}, drawn[1])
        yield from (drawn[0], (*drawn, drawn[0], number), number, "text", [[drawn[0]]])


SOURCES = {
    "arrays": lambda: (X, -X),
    "one array": lambda: X,
    "tf.data": tf_data,
    "DataLoader": lambda: DataLoader(Pairs(), BATCH, shuffle=True),
    "DataLoader of dicts": lambda: DataLoader(Rows(), BATCH, shuffle=True),
    "StatefulDataLoader": lambda: StatefulDataLoader(
        Pairs(), BATCH, shuffle=True, num_workers=0
    ),
    "PyDataset": Own,
    "Grain": lambda: (
        grain.MapDataset.source(X).seed(3).shuffle().to_iter_dataset().batch(BATCH)
    ),
    "generator": endless,
    "generator over a DataLoader": lambda: cycle(
        DataLoader(Pairs(), BATCH, shuffle=True)
    ),
    "generator over dicts": lambda: cycle(DataLoader(Rows(), BATCH, shuffle=True)),
    "generator of anything": anything,
    "iterable": Counting,
    "iterable of lists": CountingLists,
    "list of batches": lambda: [(x, -x) for x in np.array_split(X, 6)],
}


def seen(batch):
    """A batch as bytes, in its structure."""
    return keras.tree.map_structure(
        lambda leaf: as_bytes(np.asarray(leaf)).tobytes(), batch
    )


def loop(name, directory, until=None):
    """The batches of a run, as far as a step: that one is lost."""
    run = resilient.Run(directory, save_freq=1, keep=100, verbose=0)
    options = {"batch_size": BATCH} if "array" in name else {}
    if name.startswith("generator"):
        options["steps_per_epoch"] = 6
    found = {}
    for epoch, step, batch in run.loop(SOURCES[name](), epochs=3, **options):
        if step == until:
            break
        found[epoch, step] = seen(batch)
        draw()
    return found


def draw():
    """What the loop itself draws between two batches."""
    if keras.backend.backend() == "torch":
        torch.rand(1), np.random.randn(1)


@pytest.mark.spread
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("name", SOURCES)
def test_resumed_loop_is_given_the_batches_that_are_left(name, tmp_path, backend):
    """Twice within one epoch, at the start of an epoch, and of the last one."""
    keras.utils.set_random_seed(5)
    torch.manual_seed(5)
    expected = loop(name, tmp_path / "alone")
    assert len(expected) == 18
    keras.utils.set_random_seed(5)
    torch.manual_seed(5)
    found = {}
    for until in (3, 5, 6, 13, None):
        found |= loop(name, tmp_path / "stopped", until)
        keras.utils.set_random_seed(7)
        torch.manual_seed(7)
    assert found == expected


def plain(data):
    """What ``for batch in data`` gives; a PyDataset gives its batches by index."""
    if isinstance(data, Own):
        return [data[index] for index in range(len(data))]
    return itertools.islice(data, 6) if hasattr(data, "send") else iter(data)


@pytest.mark.spread
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("name", [name for name in SOURCES if "array" not in name])
def test_loop_is_the_plain_loop(name, tmp_path, backend):
    """The same objects on every backend: nothing converts what the data gives."""
    endless = name.startswith("generator")
    epochs = 1 if endless else 2
    found = []
    for run in ("plain", "ours"):
        torch.manual_seed(5)
        tf.random.set_seed(5)
        keras.utils.set_random_seed(5)
        data = SOURCES[name]()
        if run == "plain":
            batches = (batch for _ in range(epochs) for batch in plain(data))
        else:
            steps = {"steps_per_epoch": 6} if endless else {}
            if name == "PyDataset":
                steps = {"shuffle": False}
            ours = resilient.Run(tmp_path, verbose=0)
            batches = (b for _, _, b in ours.loop(data, epochs=epochs, **steps))
        found.append([])
        for batch in batches:
            leaves = keras.tree.flatten(batch)
            dtypes = [str(getattr(leaf, "dtype", None)) for leaf in leaves]
            kinds = [*zip(map(type, leaves), dtypes, strict=True)]
            found[-1].append((type(batch), kinds, seen(batch)))
            draw()
    assert found[0] == found[1]
