"""What workers of TensorFlow train on."""

import os

import tensorflow as tf
from worker_data import BATCH, SAMPLES, Batches, Views, X, Y, generated, in_groups

RANK = int(os.environ.get("RANK", "0"))
Policy = tf.data.experimental.AutoShardPolicy
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()
SCOPE = STRATEGY.scope


def sharded(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def shuffled(seed=3, size=BATCH):
    return rows().shuffle(9, seed=seed).batch(size, drop_remainder=True)


def from_files(directory):
    files = [str(directory / f"{number}.txt") for number in range(4)]
    return tf.data.TextLineDataset(files).map(parsed).batch(BATCH)


def parsed(line):
    numbers = tf.strings.to_number(tf.strings.split(line))
    return tf.ensure_shape(numbers[:3], (3,)), tf.ensure_shape(numbers[3:], (1,))


def write_files(directory):
    for number in range(4):
        lines = [
            " ".join(map(str, [*x, *y]))
            for x, y in zip(X[number::4], Y[number::4], strict=True)
        ]
        (directory / f"{number}.txt").write_text("\n".join(lines))


def from_generator(**options):
    spec = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))
    return tf.data.Dataset.from_generator(
        lambda: generated(epochs=1, **options), output_signature=spec
    )


def loader():
    from torch import Generator, as_tensor
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(as_tensor(X), as_tensor(Y))
    return DataLoader(data, BATCH, shuffle=True, generator=Generator().manual_seed(3))


def grain_data():
    import grain

    data = grain.MapDataset.source(range(SAMPLES)).shuffle(seed=4)
    return data.map(lambda n: (X[n], Y[n])).batch(BATCH)


def cases(directory, group):
    arrays = {"x": X, "y": Y, "batch_size": BATCH}
    directory.mkdir(exist_ok=True)
    if RANK == 0 and not (directory / "3.txt").exists():
        write_files(directory)
    found = {
        "arrays unseeded": lambda: (None, arrays),
        "data unseeded": lambda: (None, {"x": shuffled(None)}),
        "arrays different": lambda: (1, {**arrays, "x": X + RANK}),
        "generator validated on": lambda: (
            1,
            {**arrays, "validation_data": generated(), "validation_steps": 6},
        ),
        "OFF": lambda: (1, {"x": sharded(shuffled(3 + RANK), Policy.OFF)}),
        "FILE": lambda: (1, {"x": sharded(from_files(directory), Policy.FILE)}),
        "from_generator": lambda: (1, {"x": from_generator()}),
        "generator": lambda: (1, {"x": generated(), "steps_per_epoch": 6}),
        "views": lambda: (1, {"x": Views()}),
        "validated": lambda: (
            1,
            {"x": Batches(shuffled=True), "validation_data": shuffled()},
        ),
    }
    others = {
        "loader": lambda: (1, {"x": loader()}),
        "grain": lambda: (1, {"x": grain_data()}),
    }
    few = ("arrays different", "OFF", "validated")
    found = in_groups(found, others, group, more=lambda name: name not in few)
    return {name: (case, STRATEGY.scope) for name, case in found.items()}
