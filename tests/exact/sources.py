"""Programs whose data is not arrays. Callbacks draw nothing: threads draw as well."""

import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from .fits import BACKEND, BATCH, CLASSES, FEATURES, SAMPLES, Case, Program, compiled
from .fits import rows as numbers

EPOCH = 6  # batches


def on(data: Any, **kwargs: Any) -> Case:
    return Case(compiled(), (data,), {"epochs": 3, "verbose": 0} | kwargs)


def sliced(count: int = SAMPLES, seed: int = 0) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(numbers(count, seed))


def tf_data() -> Program:
    """No seed in the pipeline; validation is reshuffled, and cut short."""
    validation = sliced(20, seed=1).shuffle(20).batch(6).take(2)
    data = sliced().shuffle(SAMPLES).batch(BATCH).prefetch(2)
    weights = {0: 1.0, 1: 2.0, 2: 0.5}
    yield on(data, validation_data=validation, class_weight=weights)


def tf_data_interleaved() -> Program:
    """Files in random order, interleaved; cached between shuffles; without an end."""
    import tensorflow as tf

    x, y = numbers()
    for shard in range(3):
        with tf.io.TFRecordWriter(f"../shard-{shard}") as writer:
            for i in range(shard, SAMPLES, 3):
                writer.write(x[i].tobytes() + np.int64(y[i]).tobytes())

    def parsed(record: Any) -> Any:
        size = 4 * FEATURES
        row = tf.io.decode_raw(tf.strings.substr(record, 0, size), tf.float32)
        label = tf.io.decode_raw(tf.strings.substr(record, size, 8), tf.int64)
        return tf.ensure_shape(row, [FEATURES]), tf.ensure_shape(label, [1])[0]

    records = tf.data.Dataset.list_files("../shard-*").interleave(
        lambda file: tf.data.TFRecordDataset(file).shuffle(5, seed=9),
        cycle_length=2,
        num_parallel_calls=2,
    )
    data = records.map(parsed, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.cache().shuffle(16).repeat().batch(BATCH)
    yield on(data, steps_per_epoch=5)


def tf_data_of_python() -> Program:
    """Python functions with generators that go on from epoch to epoch."""
    import tensorflow as tf

    x, y = numbers()
    order = np.random.default_rng(7)

    def given() -> Any:
        for i in order.permutation(SAMPLES):
            yield x[i], y[i]

    kinds = (tf.TensorSpec((FEATURES,), tf.float32), tf.TensorSpec((), tf.int64))
    data = tf.data.Dataset.from_generator(given, output_signature=kinds)
    data = data.shuffle(20).batch(BATCH)
    options = tf.data.Options()  # else chance decides how much is computed ahead
    options.experimental_optimization.apply_default_optimizations = False
    yield on(
        data.prefetch(2) if BACKEND == "tensorflow" else data.with_options(options)
    )


def tf_data_random_map() -> Program:
    """Random operations have no state that could be saved: they are done again."""
    import tensorflow as tf

    data = sliced().shuffle(SAMPLES, seed=3).batch(BATCH)
    yield on(data.map(lambda x, y: (x + tf.random.normal(tf.shape(x)), y)))


def tf_data_asked_to_stop() -> Program:
    yield on(sliced().shuffle(SAMPLES).batch(BATCH))


def samples(*, draws: bool = False) -> Any:
    """A map-style dataset, which may draw from every global generator."""
    from torch.utils.data import Dataset

    x, y = numbers()

    class Samples(Dataset):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            import torch

            if not draws:
                return x[index], y[index]
            noise = random.random() + np.random.rand(FEATURES)
            noise = 0.1 * (noise + torch.rand(FEATURES).numpy())
            return (x[index] + noise).astype("float32"), y[index]

    return Samples()


def loader(dataset: Any, **settings: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, **{"batch_size": BATCH} | settings)


def torch_loader() -> Program:
    """Order and augmentation from global generators; validation reshuffles as well."""
    x, y = numbers(20, seed=1)
    validation = loader(list(zip(x, y, strict=True)), shuffle=True)
    yield on(loader(samples(draws=True), shuffle=True), validation_data=validation)


def torch_workers() -> Program:
    yield on(loader(samples(draws=True), shuffle=True, num_workers=2))


def torch_iterable() -> Program:
    """Another order each time it is begun; it can only be replayed."""
    from torch.utils.data import IterableDataset

    x, y = numbers()

    class Stream(IterableDataset):
        def __len__(self) -> int:
            return SAMPLES

        def __iter__(self) -> Any:
            for index in np.random.permutation(SAMPLES):
                yield x[index], y[index]

    yield on(loader(Stream()))


def stateful_loader() -> Program:
    from torchdata.stateful_dataloader import StatefulDataLoader

    yield on(StatefulDataLoader(samples(draws=True), batch_size=BATCH, shuffle=True))


def noise(sample: Any, generator: np.random.Generator) -> Any:
    x, y = sample
    return x + 0.1 * generator.random(x.shape, "float32"), y


def grain_map() -> Program:
    """Another order in each pass; an epoch is no whole pass."""
    import grain

    data = grain.MapDataset.source(list(zip(*numbers(), strict=True)))
    data = data.seed(3).shuffle().random_map(noise).repeat(4).batch(BATCH)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=5)
    yield on(data.to_iter_dataset(options), steps_per_epoch=5)


def grain_loader() -> Program:
    import grain

    sampler = grain.samplers.IndexSampler(SAMPLES, shuffle=True, seed=6, num_epochs=1)
    yield on(
        grain.DataLoader(
            data_source=list(zip(*numbers(), strict=True)),
            sampler=sampler,
            operations=[grain.transforms.Batch(BATCH)],
        )
    )


class Batches(keras.utils.PyDataset):
    """Reshuffled after each epoch, by a generator of its own."""

    def __init__(self, **workers: Any) -> None:
        super().__init__(**workers)
        self.x, self.y = numbers()
        self.order = np.arange(SAMPLES)
        self.rng = np.random.default_rng(3)
        self.begun = 0

    @property
    def num_batches(self) -> int:
        return EPOCH

    def __getitem__(self, index: int) -> Any:
        mine = self.order[BATCH * index : BATCH * index + BATCH]
        return self.x[mine] + self.begun / 50, self.y[mine]

    def on_epoch_begin(self) -> None:
        self.begun += 1

    def on_epoch_end(self) -> None:
        self.rng.shuffle(self.order)


class Drawing(Batches):
    """And each batch draws from the global generators."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + random.random() + 0.1 * np.random.normal(size=x.shape), y


class Seeded(keras.utils.PyDataset):
    """Augmentation as several workers need it: seeded by the batch's index."""

    def __len__(self) -> int:
        return EPOCH

    def __getitem__(self, index: int) -> Any:
        x, y = numbers(BATCH, seed=index)
        return x + 0.1 * np.random.default_rng(index).normal(size=x.shape), y


def py_dataset() -> Program:
    yield on(Drawing(workers=0), validation_data=Batches(workers=0), shuffle=False)


def py_dataset_workers() -> Program:
    """Two threads, and a queue that is shorter than an epoch."""
    yield on(Seeded(workers=2, max_queue_size=3))


def generator() -> Program:
    """With a seed of its own; it has as many batches as are trained."""
    own = np.random.RandomState(3)
    x, y = numbers()

    def drawn() -> Iterator[Any]:
        for _ in range(3 * EPOCH):
            chosen = own.randint(0, SAMPLES, BATCH)
            yield x[chosen], y[chosen]

    yield on(drawn(), steps_per_epoch=EPOCH)


class Shuffled:
    """A user's own data: another order in each epoch, and it knows where it is."""

    def __init__(self) -> None:
        self.x, self.y = numbers()
        self.epoch, self.batch = 0, 0

    def __len__(self) -> int:
        return EPOCH

    def __iter__(self) -> Iterator[Any]:
        order = np.random.RandomState(self.epoch).permutation(SAMPLES)
        while self.batch < EPOCH:
            chosen = order[BATCH * self.batch : BATCH * self.batch + BATCH]
            self.batch += 1
            yield self.x[chosen], self.y[chosen] % CLASSES
        self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]


def own_iterable() -> Program:
    yield on(Shuffled())
