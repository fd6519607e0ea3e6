"""A position that somebody changed: an error, or the same batches all the same.

Of each kind of data. What is inside of random states, of attributes and of the user's
own states has tests of its own.
"""

import copy
import json
import math
from functools import partial

import grain
import keras
import numpy as np
import pytest
import tensorflow as tf
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from resilient import keras_internals
from resilient.backends import get_backend
from resilient.data import DataOptions
from resilient.data.inputs import DataInputs
from resilient.data.shard import ShardedData
from resilient.distributed.strategies.base import ParallelStrategy
from resilient.serialization.batches import checksum
from resilient.serialization.json_values import decode, encode
from resilient.serialization.position import Positions, TrainingPosition
from resilient.serialization.schema import to_json, well_formed
from resilient.state import rng
from resilient.training.loop.batches import Batches, BatchOptions

pytestmark = [
    pytest.mark.sources,
    pytest.mark.filterwarnings("ignore:Not bit-exact"),
    pytest.mark.filterwarnings("ignore:.*set_vital"),
]

ROWS, SIZE, DRAWN = 24, 4, 3
X = np.arange(ROWS, dtype="float32").reshape(-1, 1)


class Own(keras.utils.PyDataset):
    def __len__(self):
        return ROWS // SIZE

    def __getitem__(self, index):
        rows = X[index * SIZE : index * SIZE + SIZE]
        return rows, rows


class Pairs(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return X[index], -X[index]


class Counting:
    """Has a state, which it reads when it is iterated."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < ROWS // SIZE:
            self.at += 1
            yield X[self.at - 1 : self.at + 3], X[self.at - 1 : self.at + 3]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = int(state["at"])


class Streamed(IterableDataset):
    def __init__(self):
        self.at = 0

    def __iter__(self):
        for row in range(self.at, ROWS):
            self.at = row + 1
            yield X[row], X[row]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = int(state["at"])


def generator():
    for _ in range(3):
        for first in range(0, ROWS, SIZE):
            yield X[first : first + SIZE], X[first : first + SIZE]


def tensors():
    return tf.data.Dataset.from_tensor_slices((X, -X))


def drawing():
    """Its iterators have no state that can be saved."""
    return tensors().map(lambda x, y: (x + tf.random.normal([1]), y)).batch(SIZE)


def loader(kind=DataLoader, dataset=Pairs):
    shuffled = not issubclass(dataset, IterableDataset)
    return kind(dataset(), batch_size=SIZE, shuffle=shuffled)


def mapped(transformed):
    source = grain.MapDataset.range(ROWS).shuffle(seed=1)
    batches = source.map(lambda i: (X[i], X[i])).batch(SIZE)
    return batches.to_iter_dataset() if transformed else batches


ARRAYS = {
    "arrays": (lambda: (X, -X), {}),
    "arrays by batch": (lambda: (X, -X), {"shuffle": "batch"}),
    "arrays in order": (lambda: (X, -X), {"shuffle": False}),
}
PYTHON = {
    "PyDataset": (Own, {}),
    "PyDataset in order": (Own, {"shuffle": False}),
    "PyDataset with workers": (partial(Own, workers=2), {}),
    "generator": (generator, {"steps_per_epoch": ROWS // SIZE}),
    "iterable": (Counting, {}),
    "grain": (partial(mapped, transformed=False), {}),
    "grain iterated": (partial(mapped, transformed=True), {}),
    "DataLoader": (loader, {}),
    "DataLoader replayed": (loader, {"replay": True}),
    "DataLoader with state": (partial(loader, dataset=Streamed), {}),
    "torchdata": (partial(loader, StatefulDataLoader, Streamed), {}),
}
TF_DATA = {
    "tf.data": (lambda: tensors().shuffle(ROWS).batch(SIZE), {}),
    "tf.data cached": (lambda: tensors().cache().shuffle(9, 1).batch(SIZE), {}),
    "tf.data replayed": (drawing, {}),
}

NESTED = 0
for _ in range(200):
    NESTED = [NESTED]
VALUES = [
    None,
    -1,
    10**30,
    "x",
    [],
    {},
    NESTED,
    math.nan,
    np.zeros((2, 2), "float16"),
    np.array([7, 7, 7], "int64"),
]
# One of so many changes is made; TensorFlow takes long for one.
SOME = 11 if keras_internals.BACKEND == "tensorflow" else 3
# Has tests of its own.
WHOLE = {"random", "attributes", "arrays", "before", "generators"}


class Run:
    """The batches of one attempt."""

    def __init__(self, make, given, position=None):
        strategy = None
        if keras_internals.BACKEND == "tensorflow":
            strategy = tf.distribute.get_strategy()
        keras.utils.set_random_seed(1 if position is None else 2)
        inputs = DataInputs(
            strategy,
            get_backend(),
            options=DataOptions(replay=given.get("replay", False)),
            arguments={"verbose": 0, "validation_data": None},
            positions=Positions(x=position),
            replaying=lambda: None,
            share=ShardedData(),
        )
        options = {k: v for k, v in given.items() if k != "replay"}
        options = BatchOptions(**{"batch_size": None} | options)
        args = (make(), options, inputs, ParallelStrategy(), strategy)
        self.batches = Batches(*args)

    def begin(self):
        self.batches.begin_epoch(rng.kept_random_state(get_backend()))

    def draw(self, count=None):
        found = []
        while count is None or len(found) < count:
            try:
                found.append(checksum(self.batches.next()))
            except StopIteration:
                break
            self.batches.trained()
        return found

    def end(self):
        self.batches.end_epoch()


def saved(make, given, *, in_epoch):
    """A position, the random state of that moment, and the batches that follow."""
    run = Run(make, given)
    run.begin()
    run.draw(DRAWN if in_epoch else None)
    if not in_epoch:
        run.end()
    arrays = {}
    with run.batches.data_adapter.frozen():
        random = rng.capture(get_backend())
        position = run.batches.position(in_epoch=in_epoch)
    data = encode(to_json(position), arrays, "data")
    arrays = {name: array.copy() for name, array in arrays.items()}
    position = decode(json.loads(json.dumps(data)), arrays)
    if not in_epoch:
        run.begin()
    return position, random, run.draw()


def resumed(make, given, plain, random, *, in_epoch):
    position = well_formed(TrainingPosition, copy.deepcopy(plain), "the position")
    run = Run(make, given, position)
    run.batches.resume_at(position, DRAWN if in_epoch else 0)
    if not in_epoch:
        rng.restore(get_backend(), random)
    run.begin()
    if in_epoch:
        rng.restore(get_backend(), random)
    return run.draw()


def places(value, path=()):
    """The place of each key of a position."""
    packed = isinstance(value, dict) and "arrays" in value
    if (
        (path[-1] == "state" and not packed)
        or path[-1] in WHOLE
        or path[-2:] == ("state", "data")
    ):
        return
    if isinstance(value, dict):
        items = value.items()
    else:
        items = enumerate(value) if type(value) is list and len(value) < 5 else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(plain, path, value, *, delete=False):
    found = copy.deepcopy(plain)
    inside = found
    for key in path[:-1]:
        inside = inside[key]
    if delete:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return found


def may_be(path, value):
    """Whether another run's position could have this: nobody can tell."""
    key = path[-1]
    if type(value) is int and (key == "keras" or "seeds" in path):
        return True
    # No changes of attributes; a state that the user's object takes.
    return key == "attributes" and type(value) is dict


def wrong(make, given, at, *, every=1, in_epoch=True):
    """The changes that go unnoticed."""
    plain, random, expected = at
    found = []
    again = partial(resumed, make, given, random=random, in_epoch=in_epoch)
    assert again(plain=plain) == expected
    changes = [
        (path, value, delete)
        for path in places(plain["data"], ("data",))
        for value, delete in [(None, True), *((value, False) for value in VALUES)]
        if delete or not may_be(path, value)
    ]
    for number, (path, value, delete) in enumerate(changes):
        if number % every:
            continue
        what = "deleted" if delete else repr(value)[:20]
        try:
            if again(plain=changed(plain, path, value, delete=delete)) != expected:
                found.append(f"{path} {what}: other batches")
        except Exception:  # of whatever uses such a value
            pass
    return "\n".join(found)


@pytest.mark.spread
@pytest.mark.parametrize("in_epoch", [True, False], ids=["in an epoch", "between"])
@pytest.mark.parametrize("name", ARRAYS)
def test_of_arrays(name, in_epoch):
    make, given = ARRAYS[name]
    at = saved(make, given, in_epoch=in_epoch)
    assert wrong(make, given, at, every=SOME, in_epoch=in_epoch) == ""


@pytest.mark.spread
@pytest.mark.parametrize("in_epoch", [True, False], ids=["in an epoch", "between"])
@pytest.mark.parametrize("name", PYTHON)
def test_of_what_python_iterates(name, in_epoch):
    make, given = PYTHON[name]
    at = saved(make, given, in_epoch=in_epoch)
    assert wrong(make, given, at, every=SOME, in_epoch=in_epoch) == ""


@pytest.mark.parametrize("name", TF_DATA)
def test_of_tf_data(name):
    make, given = TF_DATA[name]
    assert wrong(make, given, saved(make, given, in_epoch=True), every=11) == ""
