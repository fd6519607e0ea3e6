"""tf.data pipelines of other content after a restart, and epochs that end too early."""

import itertools

import keras
import numpy as np
import pytest

import resilient
from resilient import DataNotResumableError, NotExactWarning

tf = pytest.importorskip("tensorflow")

from support.pipelines import (  # noqa: E402
    MARKS,
    TENSORFLOW,
    Interrupted,
    fit,
    no_global_seed,  # noqa: F401
    rows,
)

pytestmark = [*MARKS, pytest.mark.spread]


def of_rows(order):
    """A training set as a script may compute it: 40 rows in some order."""
    x, y = (
        np.stack(column) for column in zip(*rows().as_numpy_iterator(), strict=True)
    )
    return x[order], y[order]


def split(seed):
    order = np.random.default_rng(seed).permutation(40)
    return tf.data.Dataset.from_tensor_slices(of_rows(order)).shuffle(9).batch(8)


def labels(seed):
    x, y = of_rows(np.arange(40))
    y = y + np.random.default_rng(seed).random(y.shape, "float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(9).batch(8)


def normalised(seed):
    mean = np.random.default_rng(seed).random(4, "float32")
    return rows().map(lambda x, y: (x - tf.constant(mean), y)).shuffle(9).batch(8)


def adapted(seed):
    layer = keras.layers.Normalization()
    layer.adapt(np.random.default_rng(seed).random((20, 4), "float32"))
    return rows().map(lambda x, y: (layer(x)[0], y)).shuffle(9).batch(8)


def vocabulary(seed):
    words = [f"w{n}" for n in np.random.default_rng(seed).permutation(40)]
    lookup = keras.layers.StringLookup(vocabulary=words)
    numbers = tf.data.Dataset.from_tensor_slices([f"w{n}" for n in range(40)])
    both = tf.data.Dataset.zip(rows(), numbers)

    def encoded(row, word):
        return row[0] + tf.cast(lookup(word), tf.float32) / 40, row[1]

    return both.map(encoded).shuffle(9).batch(8)


def ragged(seed):
    lengths = np.random.default_rng(seed).permutation(8)
    rows_of = tf.ragged.constant([[float(n)] * n for n in lengths], ragged_rank=1)
    summed = tf.data.Dataset.from_tensor_slices(rows_of).map(tf.reduce_sum)
    both = tf.data.Dataset.zip(rows(), summed.repeat())
    return both.map(lambda row, total: (row[0] + total / 9, row[1])).shuffle(9).batch(8)


def table(seed):
    """Of vectors, in which TensorFlow lists them in any order."""
    values = np.random.default_rng(seed).random((40, 4), "float32")
    found = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [0.0] * 4)
    found.insert(tf.range(40, dtype=tf.int64), values)
    numbered = rows().enumerate()

    def added(number, row):
        return row[0] + tf.ensure_shape(found.lookup(number), [4]), row[1]

    return numbered.map(added).shuffle(9).batch(8)


def bounded(seed):
    """Numbers that are in no constant, but in an operation itself."""
    bounds = np.sort(np.random.default_rng(seed).random(5)).tolist()
    layer = keras.layers.Discretization(bin_boundaries=bounds)

    def binned(x, y):
        return x + tf.cast(layer(x), tf.float32), y

    return rows().batch(8).map(binned).shuffle(3)


def inside(seed):
    """In the first of two functions whose constants have the same names."""
    x, y = of_rows(np.random.default_rng(seed).permutation(40))
    first = tf.data.Dataset.range(1).flat_map(lambda _: of_arrays(x, y))
    again = first.batch(40).flat_map(of_arrays)
    return again.map(lambda x, y: (x * 0.5, y)).shuffle(9).batch(8)


def of_arrays(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays)


def in_memory(seed):
    """Too large for a graph, see ``large``."""
    return split(seed)


@pytest.fixture
def large(request, monkeypatch):
    if request.node.callspec.params["data"] is in_memory:
        monkeypatch.setattr("resilient.data.tf_data.facts.LARGE_GRAPH", 0)


@pytest.mark.filterwarnings("ignore:Not bit-exact. .* cannot draw again")
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    "data",
    [
        split,
        labels,
        normalised,
        adapted,
        vocabulary,
        ragged,
        table,
        bounded,
        inside,
        in_memory,
    ],
)
def test_other_values_in_a_pipeline_are_refused(tmp_path, data):
    """Though the next batches come out of a shuffle's buffer, and are the right ones.

    At an epoch's end as in the middle of one; and accepted where the user says so.
    """
    fit(data(1), tmp_path, stop_at=9)
    for step in (7, 5):
        with pytest.raises(DataNotResumableError, match=r"constants of .*\n.* seed="):
            fit(data(2), tmp_path, resume=step)
    with pytest.warns(NotExactWarning, match="this script gave the pipeline other"):
        assert len(fit(data(2), tmp_path, on_data_change="warn")) == 15
    with pytest.warns(NotExactWarning, match="this script gave the pipeline other"):
        assert len(fit(data(2), tmp_path, resume=7, allow={"data"})) == 15


@pytest.mark.parametrize(
    "data", [split, normalised, adapted, vocabulary, table, bounded, inside]
)
def test_the_same_values_are_resumed_exactly(tmp_path, data):
    """Whatever seeds shuffles drew, and however many processors read it."""

    def made(seed, calls):
        parallel = data(1).map(lambda x, y: (x, y), num_parallel_calls=calls)
        return parallel.shuffle(3, seed=seed).prefetch(calls)

    first = fit(made(1, 2), tmp_path)
    for step in (12, 10, 3):
        assert fit(made(2, 4), tmp_path, resume=step) == first


def write(folder, numbers):
    """A file for each number, and the pipeline that reads them in this order."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        text = ",".join(map(str, np.arange(5) / 5 + number / 40))
        (folder / f"{number}.txt").write_text(text)

    def read(name):
        numbers = tf.strings.split(tf.io.read_file(name), ",")
        row = tf.ensure_shape(tf.strings.to_number(numbers), [5])
        return row[:4], row[4:]

    names = [str(folder / f"{number}.txt") for number in numbers]
    return tf.data.Dataset.from_tensor_slices(names).shuffle(9).map(read).batch(8)


def test_files_in_another_order_are_refused_and_in_another_directory_said(
    tmp_path, caplog
):
    run, here, there = tmp_path / "run", tmp_path / "here", tmp_path / "there"
    first = fit(write(here, range(40)), run)
    with pytest.raises(DataNotResumableError, match="constants of TensorSliceDataset"):
        fit(write(here, [1, 0, *range(2, 40)]), run, resume=8)
    assert "another directory" not in caplog.text
    assert fit(write(there, range(40)), run, resume=8) == first
    assert "reads files in another directory now" in caplog.text


def test_places_of_own_files_may_change(tmp_path):
    """Of a snapshot, and of a cache where nothing else begins to write it."""

    def written(folder):
        no_files = tf.data.TFRecordDataset(tf.constant([], tf.string))
        data = rows().concatenate(no_files.map(lambda _: nothing))
        data = data.snapshot(str(tmp_path / folder))
        data = data.cache(str(tmp_path / f"{folder}-")) if TENSORFLOW else data
        return data.shuffle(9, seed=1).batch(8)

    nothing = (tf.zeros([4]), tf.zeros([1]))
    first = fit(written("one"), tmp_path / "run")
    for number, step in enumerate((12, 10, 3)):
        other = written(f"other-{number}")
        assert fit(other, tmp_path / "run", resume=step) == first


def test_data_on_its_way_to_a_device_is_drawn_again(tmp_path):
    """No graph can hold such a copy."""

    def sent():
        copy = tf.data.experimental.copy_to_device("/cpu:0")
        return rows().shuffle(40, seed=1).batch(8).apply(copy)

    expected = fit(sent(), None)
    fit(sent(), tmp_path, stop_at=8)
    assert fit(sent(), tmp_path) == expected


@pytest.mark.everywhere
def test_changed_validation_data_is_said(tmp_path):
    """It trains nothing, so the run goes on."""
    arguments = {"checkpoint_dir": tmp_path, "verbose": 0, "save_freq": 1}

    def train(seed, **given):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x, y = of_rows(np.arange(40))
        resilient.fit(model, x, y, validation_data=split(seed), **arguments, **given)

    train(1, epochs=2)
    with pytest.warns(NotExactWarning, match="`validation_data`.*constants of"):
        train(2, epochs=3)


@pytest.mark.skipif(not TENSORFLOW, reason="the iterator is TensorFlow's")
def test_an_iterator_of_other_values_is_refused_by_a_loop(tmp_path):
    def loop(order, steps):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        order = np.roll(np.arange(40), order)
        data = tf.data.Dataset.from_tensor_slices(of_rows(order)).batch(8).repeat()
        run = resilient.Run(tmp_path, model=model, data_iterator=iter(data), verbose=0)
        with run:
            while run.step < steps:
                run.advance(1)

    loop(0, 2)
    with pytest.raises(resilient.CheckpointMismatchError, match="constants of Tensor"):
        loop(1, 3)


def of_length(count):
    """A pipeline of unknown length, which no graph shows."""

    def generate():
        yield from itertools.islice(rows().as_numpy_iterator(), count)

    signature = tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32)
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return data.batch(4)


@pytest.mark.everywhere
@pytest.mark.parametrize("step", [10, 13])
def test_an_epoch_that_ends_too_early_after_a_resume_is_refused(tmp_path, step):
    """The length of the first epoch was seen; 36 rows are a batch fewer."""
    fit(of_length(40), tmp_path, stop_at=16)
    with pytest.raises(DataNotResumableError, match="too early after a resume"):
        fit(of_length(36), tmp_path, resume=step)
    with pytest.warns(NotExactWarning, match="too early after a resume"):
        fit(of_length(36), tmp_path, resume=step, on_data_change="warn")


@pytest.mark.parametrize("step", [10, 13])
def test_a_loops_epoch_that_ends_too_early_after_a_resume_is_refused(tmp_path, step):
    def loop(count, stop_at=None, **options):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        options = {"model": model, "save_freq": 1, "keep": 99, "verbose": 0} | options
        run = resilient.Run(tmp_path, **options)
        for _, done, _ in run.loop(of_length(count), epochs=3):
            if done == stop_at:
                raise Interrupted

    with pytest.raises(Interrupted):
        loop(40, stop_at=16)
    with pytest.raises(DataNotResumableError, match=r"9 batches .*, 10 expected"):
        loop(36, resume=step)
    with pytest.warns(NotExactWarning, match="too early after a resume"):
        loop(36, resume=step, on_data_change="warn")


def shrinking():
    """A pipeline whose epochs have 13, 11, 11, 12 and 12 batches, in each process."""
    data = rows().repeat(2).shuffle(80, seed=2).take(40)
    return data.filter(lambda x, y: y[0] > 1.8).batch(2)


def generated():
    """Of which the first epoch takes all, and Keras has two batches for each other."""
    yield from rows().batch(4).as_numpy_iterator()


def of_a_wrong_length():
    """A loader that has fewer batches than its length says."""
    torch = pytest.importorskip("torch")

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            x, y = of_rows(np.arange(40))
            return zip(torch.tensor(x), torch.tensor(y), strict=True)

        def __len__(self):
            return 50

    return torch.utils.data.DataLoader(Rows(), batch_size=4)


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
@pytest.mark.parametrize(
    ("data", "steps"),
    [
        (lambda: of_length(38), (13, 10, 2)),
        (of_a_wrong_length, (13, 2)),
        (generated, (13, 11, 10, 2)),
        (shrinking, (42, 30)),  # after a shorter epoch
    ],
)
def test_an_epoch_as_long_as_before_is_no_error(tmp_path, data, steps):
    """With a smaller last batch, too, and where Keras knows of no length."""
    expected = fit(data(), None, epochs=5)
    assert fit(data(), tmp_path, epochs=5) == expected
    for step in steps:
        assert fit(data(), tmp_path, resume=step, epochs=5) == expected


def test_random_draws_in_parallel_calls_are_named_in_the_first_attempt(tmp_path):
    """Though each has a seed: timing decides which element gets which number."""

    def augmented(calls):
        generator = tf.random.Generator.from_seed(1)

        def add(x, y):
            return x + generator.normal([4]), y

        return rows().map(add, num_parallel_calls=calls).batch(8)

    def inside(calls):
        return tf.data.Dataset.range(1).interleave(lambda _: chosen(calls)).batch(8)

    def chosen(calls):
        def scale(x, y):
            return x * tf.cast(
                tf.random.categorical([[0.5, 0.5]], 1, seed=1), "float32"
            )[0], y

        return rows().map(scale, num_parallel_calls=calls)

    for number, data in enumerate((augmented, inside)):
        with pytest.warns(NotExactWarning, match="parallel calls") as caught:
            fit(data(2), tmp_path / f"parallel-{number}", stop_at=2)
        assert any("ParallelMapDatasetV2: " in str(each.message) for each in caught)
        for calls in (None, 1):  # or it would raise
            fit(data(calls), tmp_path / f"alone-{number}-{calls}", stop_at=2)


def test_large_variables_that_a_pipeline_assigns_are_kept(tmp_path):
    """Of any size: 17 MiB here."""

    def counting():
        count = tf.Variable(tf.zeros([17 * 2**18]))

        def add(x, y):
            index = [[0]]
            count.scatter_nd_add(index, [0.1])
            return x + count[0], y

        return rows().batch(8).map(add)

    first = fit(counting(), tmp_path, epochs=2)
    for step in (8, 5):
        assert fit(counting(), tmp_path, resume=step, epochs=2) == first
