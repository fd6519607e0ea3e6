"""Array input gives Keras's own batches, and can be brought back to any of them."""

import json

import keras
import numpy as np
import pandas
import pytest
import scipy.sparse
from support import fitting
from support.fitting import Interrupt

from resilient import DataNotResumableError, keras_internals
from resilient.backends import get_backend
from resilient.data.arrays.sliced import array_fingerprint
from resilient.data.select import adapter_for
from resilient.data.source import SourceContext
from resilient.serialization.position import DataPosition
from resilient.serialization.schema import from_json, to_json
from resilient.state.rng import capture, kept_random_state, restore

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

BACKEND = keras_internals.BACKEND
SHUFFLES = [True, "batch", False]


def ours(x, y=None, **given):
    """The adapter that stands in for Keras's."""
    return adapter_for({"x": x, "y": y, **given}, SourceContext(get_backend()))


def theirs(x, y=None, **given):
    """Keras's own adapter."""
    if "steps_per_epoch" in given:
        given["steps"] = given.pop("steps_per_epoch")
    return keras_internals.ArrayDataAdapter(x, y, **given)


class Epochs:
    """An adapter's batches, epoch by epoch, as the trainer of this backend asks."""

    def __init__(self, adapter):
        self.adapter = adapter
        if BACKEND == "tensorflow":
            self.dataset = adapter.get_tf_dataset()

    def start(self):
        if hasattr(self.adapter, "before_iterator"):
            self.adapter.before_iterator()
        if BACKEND == "tensorflow":
            return map(plain, self.dataset)
        if BACKEND == "torch":
            return map(plain, iter(self.adapter.get_torch_dataloader()))
        return map(plain, self.adapter.get_jax_iterator())


def plain(batch):
    """A batch as lists: structure, dtypes, shapes and values."""
    leaves = keras.tree.flatten_with_path(batch)
    return [(path, None if leaf is None else describe(leaf)) for path, leaf in leaves]


def describe(tensor):
    array = to_numpy(tensor)
    return str(array.dtype), array.shape, array.tolist()


def to_numpy(tensor):
    if hasattr(tensor, "to_dense"):  # torch
        return tensor.to_dense().detach().numpy()
    if hasattr(tensor, "todense"):  # JAX, scipy
        return np.asarray(tensor.todense())
    if BACKEND == "tensorflow":
        import tensorflow as tf

        if isinstance(tensor, tf.SparseTensor):
            return tf.sparse.to_dense(tensor).numpy()
        if isinstance(tensor, tf.RaggedTensor):
            return np.array(tensor.to_list(), dtype=object)
        return np.asarray(tensor.numpy())
    return np.asarray(tensor)


def assert_same_epochs(make, epochs=2):
    """Both adapters give the same batches and leave the same random state."""
    keras.utils.set_random_seed(3)
    expected = Epochs(make(theirs))
    batches = [list(expected.start()) for _ in range(epochs)]
    state = fitting.random_state()
    keras.utils.set_random_seed(3)
    actual = Epochs(make(ours))
    assert [list(actual.start()) for _ in range(epochs)] == batches
    assert fitting.random_state() == state
    return batches


# Keras's own order ----------------------------------------------------------------


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(("samples", "size"), [(12, 4), (13, 4), (5, 8), (3, 1)])
def test_batches_are_those_of_keras_in_its_order(samples, size, shuffle):
    x, y = fitting.data(samples)
    batches = assert_same_epochs(
        lambda make: make(x, y, batch_size=size, shuffle=shuffle)
    )
    assert len(batches[0]) == -(-samples // size)
    adapters = [make(x, y, batch_size=size, shuffle=shuffle) for make in (ours, theirs)]
    for name in ("num_batches", "batch_size", "has_partial_batch"):
        assert getattr(adapters[0], name) == getattr(adapters[1], name)


def test_the_size_of_a_batch_follows_from_steps_as_in_keras():
    x, y = fitting.data(10)
    batches = assert_same_epochs(lambda make: make(x, y, steps_per_epoch=3), epochs=1)
    assert len(batches[0]) == 3
    assert_same_epochs(lambda make: make(x, y), epochs=1)


def frames():
    x, y = fitting.data(10)
    columns = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1].astype("float64")})
    return columns, pandas.Series(y[:, 0])


def backend_tensors():
    x, y = fitting.data(10)
    return keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y)


def sparse_rows():
    x, y = fitting.data(10)
    return scipy.sparse.csr_matrix(np.where(x > 0, x, 0)), y


def keras_sparse():
    x, y = fitting.data(10)
    dense = np.where(x > 0, x, 0)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.sparse.from_dense(dense), y
    if BACKEND == "jax":
        from jax.experimental import sparse

        return sparse.BCOO.fromdense(dense, n_batch=0), y
    return None


def ragged():
    if BACKEND != "tensorflow":
        return None
    import tensorflow as tf

    rows = [[float(i)] * (i % 3 + 1) for i in range(10)]
    return tf.ragged.constant(rows, dtype="float32"), np.arange(10)


def strings():
    if BACKEND != "tensorflow":
        return None
    return np.array([f"text {i}" for i in range(10)], dtype=object), np.arange(10)


X, Y = fitting.data(10)
KINDS = {
    "float64": lambda: (X.astype("float64"), Y.astype("float64")),
    "float16": lambda: (X.astype("float16"), Y),
    "integers": lambda: (np.arange(10, dtype="int64"), np.arange(10, dtype="uint8")),
    "booleans": lambda: (X > 0, Y > 0),
    "fortran order": lambda: (np.asfortranarray(X), Y),
    "no y": lambda: (X, None),
    "lists": lambda: ([X, 2 * X], [Y, X]),
    "dicts": lambda: ({"b": X, "a": 2 * X}, {"out": Y}),
    "nested": lambda: ({"a": [X, (2 * X, 3 * X)]}, Y),
    "pandas": frames,
    "tensors": backend_tensors,
    "scipy sparse": sparse_rows,
    "sparse tensors": keras_sparse,
    "ragged tensors": ragged,
    "strings": strings,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_array_gives_the_batches_of_keras(kind):
    given = KINDS[kind]()
    if given is None:
        pytest.skip(f"the {BACKEND} backend has none")
    x, y = given
    for shuffle in (True, False):
        assert_same_epochs(
            lambda make, shuffle=shuffle: make(x, y, batch_size=4, shuffle=shuffle),
            epochs=1,
        )
    facts = ours(x, y, batch_size=4).fingerprint()
    assert facts == ours(x, y, batch_size=4).fingerprint()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["samples"] == 10


def test_weights_go_with_their_samples_as_in_keras():
    x, y = fitting.data(10)
    classes = (y > 0).astype("int32")
    for given in ({"sample_weight": np.arange(10)}, {"class_weight": {0: 1, 1: 5}}):
        assert_same_epochs(
            lambda make, given=given: make(
                x, classes, batch_size=4, shuffle=True, **given
            ),
            epochs=1,
        )


# Back to a position ---------------------------------------------------------------


def through_json(position):
    """A position as another process finds it."""
    return from_json(DataPosition, json.loads(json.dumps(to_json(position))))


def draw():
    """Draw as a training step may, from the generators that orders come from."""
    np.random.rand(3)
    if BACKEND == "torch":
        import torch

        torch.rand(3)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(
    "drawn",
    [pytest.param(n, marks=[pytest.mark.spread] * (n % 2)) for n in range(4)],
)
def test_a_position_gives_exactly_the_batches_that_remain(shuffle, drawn):
    def make():
        return Epochs(ours(*fitting.data(13), batch_size=4, shuffle=shuffle))

    backend = get_backend()
    whole = make()
    list(whole.start())
    batches = whole.start()
    for _ in range(drawn):
        next(batches)
        draw()
    position = through_json(whole.adapter.position(drawn, held=True))
    state = json.loads(json.dumps(capture(backend)))
    expected = list(batches)
    assert len(expected) == 4 - drawn
    expected_state = fitting.random_state()
    following = list(whole.start())

    fitting.other_seed()
    again = make()
    if not drawn:  # an epoch's end, where the random state is restored first
        restore(backend, state)
    with kept_random_state(backend):
        again.adapter.seek(position)
        actual = again.start()
    restore(backend, state)
    assert list(actual) == expected
    assert fitting.random_state() == expected_state
    # The epoch after it is whole again, and the uninterrupted run's.
    assert list(again.start()) == following


def test_an_order_that_another_keras_drew_is_refused_in_mid_epoch(monkeypatch):
    """Silently, it would be another one."""

    def make():
        return Epochs(ours(*fitting.data(13), batch_size=4, shuffle=True))

    whole = make()
    next(whole.start())
    position = whole.adapter.position(1, held=True)
    generation = type(keras_internals.generation)
    monkeypatch.setattr(generation, "orders", "the phase of the moon")
    with pytest.raises(DataNotResumableError, match=r"draws it from the phase"):
        make().adapter.seek(position)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_position_may_be_taken_in_an_epoch_that_began_at_one(shuffle):
    def make():
        return Epochs(ours(*fitting.data(22), batch_size=4, shuffle=shuffle))

    backend = get_backend()
    keras.utils.set_random_seed(7)
    epochs = make()
    expected = list(epochs.start())
    fitting.other_seed()
    epochs = make()
    keras.utils.set_random_seed(7)
    batches = epochs.start()
    assert [next(batches), next(batches)] == expected[:2]
    for drawn in (2, 4):
        position, state = epochs.adapter.position(drawn, held=True), capture(backend)
        fitting.other_seed()
        epochs = make()
        epochs.adapter.seek(position)
        with kept_random_state(backend):
            batches = epochs.start()
        restore(backend, state)
        assert [next(batches), next(batches)] == expected[drawn : drawn + 2]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only there a seed may be missing")
@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_without_a_seed_a_position_gives_its_own_order(shuffle):
    import tensorflow as tf

    tf.random.set_seed(None)
    if keras_internals.RELEASE >= (3, 16):
        pytest.skip(
            "since Keras 3.16 the order is one and the same without a seed, too"
        )
    epochs = Epochs(ours(*fitting.data(13), batch_size=4, shuffle=shuffle))
    first = list(epochs.start())
    batches = epochs.start()
    head = [next(batches), next(batches)]
    position = through_json(epochs.adapter.position(2, held=True))
    rest = list(batches)
    assert head + rest != first

    again = Epochs(ours(*fitting.data(13), batch_size=4, shuffle=shuffle))
    again.adapter.seek(position)
    assert list(again.start()) == rest
    rows = sorted(repr(row) for b in head + rest for row in b[0][1][2])
    assert rows == sorted(repr(row) for row in fitting.data(13)[0].tolist())
    if shuffle == "batch":  # rows stay in their batch
        parts = [sorted(map(repr, batch[0][1][2])) for batch in head + rest]
        x = fitting.data(13)[0].tolist()
        assert parts == [sorted(map(repr, x[i : i + 4])) for i in range(0, 13, 4)]


@pytest.mark.skipif(
    not hasattr(keras_internals.backend_epoch_iterator(), "_one_batch_ahead_iterator"),
    reason="only JAX's trainer looks ahead; before Keras 3.14 in all tests",
)
@pytest.mark.parametrize(
    ("steps_per_epoch", "shuffle"),
    [
        (None, True),
        (3, "batch"),
        (3, False),
        pytest.param(None, "batch", marks=pytest.mark.long),
        pytest.param(None, False, marks=pytest.mark.long),
        pytest.param(3, True, marks=pytest.mark.long),
    ],
)
def test_looking_one_batch_ahead_resumes_exactly(
    tmp_path, monkeypatch, steps_per_epoch, shuffle
):
    iterator = keras_internals.backend_epoch_iterator()
    looked = []

    def ahead(self):  # as off the CPU
        looked.append(self)
        batches = self.data_adapter.get_jax_iterator()
        return self._one_batch_ahead_iterator(batches)

    monkeypatch.setattr(iterator, "_get_iterator", ahead)
    given = {"shuffle": shuffle, "steps_per_epoch": steps_per_epoch}
    expected = fitting.model()
    logs = expected.fit(**fitting.arguments(callbacks=[Interrupt()], **given)).history
    state = fitting.random_state()
    for epoch, batch in ((0, 2), (1, 1), (2, 0)):
        directory = tmp_path / f"{epoch}-{batch}"
        fitting.interrupted(directory, epoch, batch, save_freq=1, **given)
        fitting.other_seed()
        net = fitting.model(seed=99)
        callbacks = [Interrupt()]
        history = fitting.fit(net, directory, callbacks=callbacks, **given)
        assert history.history == logs
        fitting.assert_equal(expected, net)
        assert fitting.random_state() == state
    assert looked


# What the data is -----------------------------------------------------------------


def digest(x):
    return array_fingerprint(x)["xxh3_128"]


def test_equal_content_has_equal_fingerprints():
    x = fitting.data(1000)[0]
    same = [x.copy(), np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2]]
    same.append(keras.ops.convert_to_tensor(x))
    same.append(pandas.DataFrame(x))
    assert {json.dumps(array_fingerprint(each)) for each in same} == {
        json.dumps(array_fingerprint(x))
    }


@pytest.mark.parametrize("row", [0, 1, 499, 998, 999])
def test_one_other_bit_is_noticed(row):
    x = fitting.data(1000)[0]
    other = x.copy()
    other.view("uint32")[row, 1] ^= 1
    assert digest(other) != digest(x)


def test_shape_dtype_and_order_are_part_of_a_fingerprint():
    x = np.arange(12, dtype="int32").reshape(6, 2)
    others = [x.reshape(4, 3), x.astype("int64"), x[::-1], x.view("uint32"), x[:5]]
    found = {json.dumps(array_fingerprint(each)) for each in [x, *others]}
    assert len(found) == 6


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Keras takes strings there only")
def test_strings_are_known_by_their_text():
    texts = np.array([f"text {i}" for i in range(9)], dtype=object)
    again = np.array([f"text {i}" for i in range(9)], dtype=object)
    other = np.array([f"text {i % 8}" for i in range(9)], dtype=object)
    assert digest(texts) == digest(again)
    assert digest(texts) != digest(other)


class Watched(np.ndarray):
    """Counts the bytes that are read of it."""

    def __getitem__(self, index):
        part = super().__getitem__(index)
        read.append(part.size * part.itemsize)
        return part.view(np.ndarray)


read: list[int] = []


def huge(rows, columns):
    """A view of many gigabytes that needs no memory."""
    array = np.broadcast_to(np.arange(columns, dtype="float32"), (rows, columns))
    return array.view(Watched)


def test_of_a_huge_array_a_part_is_read():
    read.clear()
    array = huge(100_000_000, 1000)  # 400 GB
    facts = array_fingerprint(array)
    assert facts["shape"] == [100_000_000, 1000]
    assert 2**20 < sum(read) < 2**30
    assert array_fingerprint(array) == facts
    assert digest(huge(100_000_000, 999)) != facts["xxh3_128"]


def test_huge_rows_are_read_one_at_a_time():
    read.clear()
    array = huge(50, 5_000_000)  # 20 MB a row
    array_fingerprint(array)
    assert max(read) == 20_000_000
    assert sum(read) <= 52 * 20_000_000


def test_a_mapped_file_is_told_from_another_by_its_ends(tmp_path):
    path = tmp_path / "x.bin"
    array = np.memmap(path, "float32", "w+", shape=(2**20, 256))  # 1 GB of holes
    before = digest(array)
    assert digest(np.memmap(path, "float32", "r", shape=(2**20, 256))) == before
    array[-1, -1] = 1
    last = digest(array)
    array[0, 0] = 1
    assert len({before, last, digest(array)}) == 3


def test_the_fingerprint_names_each_array():
    facts = ours({"b": X, "a": [X, X]}, Y, sample_weight=np.ones(10)).fingerprint()
    arrays = {"x/a/0", "x/a/1", "x/b", "y", "sample_weight"}
    assert set(facts) == {"kind", "samples", "batch_size", "shuffle", *arrays}
    assert facts["x/b"] == array_fingerprint(X)
    assert set(ours(X).fingerprint()) > {"x"}


# What has no position -------------------------------------------------------------


@pytest.mark.parametrize("argument", ["x", "validation_data"])
def test_a_users_own_adapter_is_refused_by_name(tmp_path, argument):
    """Keras takes it as it is; nothing is known of its order."""
    net, follow = fitting.model(), Interrupt()
    given = {argument: keras_internals.ArrayDataAdapter(*fitting.data())}
    if argument == "x":
        given |= {"y": None, "batch_size": None}
    with pytest.raises(DataNotResumableError, match=f"`{argument}` cannot be") as found:
        fitting.fit(net, tmp_path, callbacks=[follow], **given)
    rest = str(found.value).partition("\nReceived: ")[2]
    assert rest.startswith("keras.src.trainers.data_adapters.")
    assert "state_dict() and load_state_dict()" in rest
    assert follow.seen == []
    assert fitting.steps(tmp_path) == []


def test_what_keras_does_not_know_is_its_own_error(tmp_path):
    with pytest.raises(ValueError, match="Unrecognized data type"):
        fitting.fit(fitting.model(), tmp_path, x=iter([]), y=None)
