"""Sources of data: tf.data pipelines."""

from typing import Any

import numpy as np

from .parts import CLASSES, SAMPLES, Case, compiled, noisy, rows
from .registry import source


def sliced() -> Any:
    """Rows of 64 and their classes, one by one."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(rows())


def case(dataset: Any, **settings: Any) -> Case:
    defaults = {"epochs": 3, "verbose": 0}
    return Case(compiled(noisy((64,))), (dataset,), defaults | settings)


def validation() -> Any:
    """Reshuffled before each evaluation; its size makes metrics depend on the order."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(rows(20, seed=1))
    return data.shuffle(20).batch(6).take(2)


@source(in_exact=True)
def tf_data_shuffled() -> Case:
    """No seed in the pipeline; validation is reshuffled, classes are weighted."""
    dataset = sliced().shuffle(SAMPLES).batch(8).prefetch(2)
    weights = {0: 1.0, 1: 2.0, 2: 0.5}
    return case(dataset, validation_data=validation(), class_weight=weights)


@source("train_batch_end@1:1", "train_batch_end@1:4", "epoch_begin@2")
def tf_data_shuffled_twice_with_a_seed() -> Case:
    """Two shuffles, one of them drawn lazily; one order for all epochs below."""
    dataset = sliced().shuffle(20, seed=1, reshuffle_each_iteration=False)
    return case(dataset.shuffle(10, seed=3).shuffle(4).batch(8))


@source("train_batch_end@0:2", "train_batch_end@1:1", "train_batch_end@1:3")
def tf_data_repeated_with_steps() -> Case:
    """Five steps of seven batches: an iterator goes on over epochs."""
    dataset = sliced().shuffle(30).repeat().batch(8)
    return case(dataset, steps_per_epoch=5, validation_data=validation())


@source()
def tf_data_of_unknown_length() -> Case:
    """Filtered, cached in memory, shuffled above and below the cache, concatenated."""
    few = sliced().shuffle(12).filter(lambda x, y: y > 0)
    dataset = few.cache().shuffle(9).concatenate(sliced().shuffle(7).take(10))
    return case(dataset.batch(8))


@source("train_batch_end@0:2", "train_batch_end@1:1", "epoch_begin@2")
def tf_data_cached_between_shuffles() -> Case:
    """The cache keeps the order of the first epoch."""
    return case(sliced().shuffle(SAMPLES).cache().shuffle(20).batch(8).prefetch(9))


def as_taken(dataset: Any) -> Any:
    """The same, of which nothing is computed before somebody takes it.

    Else chance decides how much TensorFlow computes of what Keras only peeks at.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)


@source("train_batch_end@0:2", "epoch_begin@1", "train_batch_end@2:3")
def tf_data_with_variables() -> Case:
    """A random generator, a random layer, a counter: maps go on with them. No seed."""
    import keras
    import tensorflow as tf

    generator = tf.random.Generator.from_seed(3)
    count = tf.Variable(0.0)
    dataset = sliced().shuffle(SAMPLES).batch(8)
    if keras.backend.backend() == "tensorflow":
        noise = keras.layers.GaussianNoise(0.5)
        dataset = dataset.map(lambda x, y: (noise(x, training=True), y))
    dataset = dataset.map(
        lambda x, y: (x * generator.normal([64]) + count.assign_add(0.01), y)
    )
    return case(as_taken(dataset))


@source(in_exact=True)
def tf_data_from_python() -> Case:
    """Python functions with random generators that go on from epoch to epoch."""
    import keras
    import tensorflow as tf

    x, y = rows()
    random = np.random.default_rng(7)
    noise = np.random.RandomState(8)

    def given() -> Any:
        for i in random.permutation(SAMPLES):
            yield x[i], y[i]

    signature = (tf.TensorSpec((64,), tf.float32), tf.TensorSpec((), tf.int64))
    dataset = tf.data.Dataset.from_generator(given, output_signature=signature)

    def scaled(row: Any) -> Any:
        row = tf.py_function(lambda a: a * noise.rand(), [row], tf.float32)
        return tf.ensure_shape(row, [64])

    dataset = dataset.shuffle(20).map(lambda row, label: (scaled(row), label))
    dataset = dataset.batch(8)
    if keras.backend.backend() == "tensorflow":
        return case(dataset.prefetch(2))
    return case(as_taken(dataset))


@source()
def tf_data_cached_on_disk() -> Case:
    """A cache in a file, a snapshot, and a variable that is only read."""
    import tensorflow as tf

    scale = tf.Variable(2.0)
    dataset = sliced().map(lambda x, y: (x * scale, y)).snapshot("../snapshot")
    dataset = dataset.cache("../cached").shuffle(20)
    return case(dataset.batch(8).prefetch(1))


@source("train_batch_end@0:3", "epoch_begin@1", "train_batch_end@1:4")
def tf_data_from_csv() -> Case:
    """Rows of CSV files, whose iterators TensorFlow restores at a wrong line."""
    import tensorflow as tf

    x, y = rows()
    for part in range(2):
        lines = [
            ",".join(map(repr, [*map(float, x[i, :4]), int(y[i])]))
            for i in range(part, SAMPLES, 2)
        ]
        with open(f"../part-{part}.csv", "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
    types = [tf.float32] * 4 + [tf.int64]
    files = ["../part-0.csv", "../part-1.csv"]
    data = tf.data.experimental.CsvDataset(files, types).shuffle(20)
    return case(
        data.map(lambda *row: (tf.tile(tf.stack(row[:4]), [16]), row[4])).batch(8)
    )


@source("train_batch_end@0:3", "train_batch_end@1:2", "epoch_begin@2")
def tf_data_snapshot() -> Case:
    """A snapshot that is written in the first epoch and read in all others."""
    return case(sliced().snapshot("../snapshot").shuffle(20).batch(8))


@source("train_batch_end@1:2", "train_batch_end@1:5", backends=("tensorflow", "jax"))
def tf_data_several_steps_per_execution() -> Case:
    """Sampled from two datasets; a stateless random map; three steps at once."""
    import tensorflow as tf

    both = [sliced().shuffle(30), sliced().shuffle(30, seed=2)]
    dataset = tf.data.Dataset.sample_from_datasets(both, [0.7, 0.3])
    dataset = dataset.enumerate().map(
        lambda i, row: (row[0] + tf.random.stateless_normal([64], [i, 1]), row[1])
    )
    made = case(dataset.batch(8).take(8))
    made.model = compiled(noisy((64,)), steps_per_execution=3)
    return made


@source(backends=("tensorflow", "jax"), slow=["jax"])
def tf_data_sparse() -> Case:
    """Sparse rows."""
    import keras
    import tensorflow as tf

    def sparse(x: Any, y: Any) -> Any:
        return tf.sparse.from_dense(tf.where(x > 0.8, x, 0.0)), y

    model = keras.Sequential(
        [keras.Input((64,), sparse=True), keras.layers.Dense(CLASSES)]
    )
    dataset = sliced().shuffle(SAMPLES).batch(8).map(sparse)
    made = case(dataset)
    made.model = compiled(model)
    return made


@source(backends=("tensorflow",))
def tf_data_ragged() -> Case:
    """Ragged rows of numbers, embedded."""
    import keras
    import tensorflow as tf

    lengths = np.random.RandomState(0).randint(1, 9, SAMPLES)
    x = tf.RaggedTensor.from_row_lengths(np.arange(lengths.sum()) % 20, lengths)
    y = rows()[1]
    model = keras.Sequential(
        [
            keras.layers.Embedding(20, 8),
            keras.layers.Lambda(lambda rows: tf.reduce_mean(rows, axis=1)),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(CLASSES),
        ]
    )
    made = case(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(30).batch(8))
    made.model = compiled(model)
    return made
