"""Data for the workers' fits: whole numbers, by every kind of source."""

import keras
import numpy as np

SAMPLES, BATCH = 48, 8
random = np.random.RandomState(0)
X = random.randint(-2, 3, (SAMPLES, 3)).astype("float32")
Y = random.choice([-1, 1], (SAMPLES, 1)).astype("float32")


class Batches(keras.utils.PyDataset):
    def __init__(self, size=BATCH, rows=slice(None), shuffled=False, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.size = X[rows], Y[rows], size
        self.order = np.arange(len(self.x))
        self.random = np.random.default_rng(3) if shuffled else None

    def __len__(self):
        return len(self.x) // self.size

    def __getitem__(self, number):
        mine = self.order[number * self.size : (number + 1) * self.size]
        return self.x[mine], self.y[mine]

    def on_epoch_end(self):
        if self.random is not None:
            self.order = self.random.permutation(len(self.x))


def aligned(array):
    """A copy whose memory TensorFlow would use as it is, and not copy."""
    memory = np.empty(array.size + 32, array.dtype)
    start = -memory.ctypes.data % 128 // memory.itemsize
    copy = memory[start : start + array.size].reshape(array.shape)
    copy[:] = array
    return copy


class Views(keras.utils.PyDataset):
    """Gives its own arrays, not copies: who writes into a batch changes the data."""

    def __init__(self):
        super().__init__()
        self.x, self.y = aligned(X), aligned(Y)

    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, number):
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return self.x[rows], self.y[rows]


def generated(size=BATCH, rows=slice(None), epochs=None, seed=5):
    """Batches in random order, epoch after epoch."""
    x, y = X[rows], Y[rows]
    random = np.random.default_rng(seed)
    while epochs is None or epochs > 0:
        order = random.permutation(len(x))
        for start in range(0, len(x), size):
            mine = order[start : start + size]
            yield x[mine], y[mine]
        epochs = None if epochs is None else epochs - 1


def in_groups(found, others, group, *, more):
    """The cases of a group; ``more`` tells those that the short suite leaves out."""
    return {
        "own": {name: case for name, case in found.items() if not more(name)},
        "more": {name: case for name, case in found.items() if more(name)},
        "others": others,
    }[group]


def some(size=16):
    """To validate on."""
    return X[:size], Y[:size]
