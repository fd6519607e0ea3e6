"""Programs that call ``fit``: each makes a model, its data and its callbacks, anew.

A program is a generator: what it does after a ``yield`` comes after that fit.
"""

import queue
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, ops

SAMPLES, FEATURES, CLASSES, BATCH = 44, 12, 3, 8  # 6 batches, the last one smaller
BACKEND = keras.backend.backend()


@dataclass
class Case:
    """One fit that is about to be called.

    Attributes:
        args: Positional arguments of ``fit``.
        kwargs: Its keyword arguments but ``callbacks``.
        stateful: Objects for ``resilient.fit(stateful=...)``.
        others: What is compared besides.
    """

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    callbacks: list[Any] = field(default_factory=list)
    stateful: dict[str, Any] = field(default_factory=dict)
    others: list[Any] = field(default_factory=list)


Program = Iterator[Case]


def rows(count: int = SAMPLES, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Data: never from a global generator, whose state is under test."""
    numbers = np.random.RandomState(seed)
    x = numbers.rand(count, FEATURES).astype("float32")
    return x, numbers.randint(0, CLASSES, count)


def noisy() -> keras.Sequential:
    """A small model whose every batch draws random numbers."""
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(8, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(CLASSES),
        ]
    )


def compiled(model: Any = None, optimizer: Any = None, **settings: Any) -> keras.Model:
    """Compile for classification; without XLA on TensorFlow, which is slow at it.

    A built model gets its optimizer's variables now: TensorFlow traces half as much.
    """
    model = model or noisy()
    if BACKEND == "tensorflow":
        settings = {"jit_compile": False} | settings
    optimizer = optimizer or keras.optimizers.Adam(0.01)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, losses, **settings)
    if model.built and not settings.get("metrics"):
        model.optimizer.build(model.trainable_variables)
    return model


class Recorder(keras.callbacks.Callback):
    """Remembers what callbacks see, and draws from the global generators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = float(logs["loss"])
        self.seen.append((batch, loss, random.random(), np.random.rand()))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        values = {name: float(value) for name, value in logs.items()}
        self.seen.append((epoch, values, np.random.randint(1000)))


def case(model: Any = None, args: Any = None, **kwargs: Any) -> Case:
    """Three epochs on arrays, silent, recorded."""
    defaults = {"epochs": 3, "batch_size": BATCH, "verbose": 0}
    args = rows() if args is None else args
    return Case(model or compiled(), args, defaults | kwargs, [Recorder()])


def arrays() -> Program:
    """What a first batch makes is made by it: slots of the optimizer, and a metric."""
    yield case(compiled(metrics=["accuracy"]), validation_data=rows(20, seed=1))


def steps_per_epoch() -> Program:
    """Epochs of 4 batches over 6: an iterator spans epochs and ends within one."""
    yield case(epochs=4, steps_per_epoch=4)


def weights_and_splits() -> Program:
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    yield case(
        compiled(optimizer=optimizer, metrics=["accuracy"]),
        shuffle="batch",
        class_weight={0: 1.0, 1: 2.0, 2: 0.5},
        validation_split=0.25,
        validation_freq=[2, 3],
        validation_batch_size=4,
    )


def sample_weights_in_order() -> Program:
    """An average of the weights, gradients that are accumulated, a falling rate."""
    rate = keras.optimizers.schedules.CosineDecay(0.05, 18, warmup_steps=4)
    optimizer = keras.optimizers.AdamW(
        rate, use_ema=True, ema_overwrite_frequency=5, gradient_accumulation_steps=4
    )
    weights = np.random.RandomState(5).rand(SAMPLES).astype("float32")
    model = compiled(optimizer=optimizer, weighted_metrics=["accuracy"])
    yield case(model, shuffle=False, sample_weight=weights)


def tensors_in_half_precision() -> Program:
    """A loss scale that grows every 2 steps, and falls when a batch overflows."""
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=2.0**14, dynamic_growth_steps=2
    )
    data = tuple(ops.convert_to_tensor(part) for part in rows())
    yield case(compiled(optimizer=optimizer), data)


def inputs_by_name() -> Program:
    a, b = keras.Input((FEATURES,), name="a"), keras.Input((FEATURES,), name="b")
    hidden = layers.Concatenate()([a, layers.GaussianNoise(0.1)(b)])
    hidden = layers.Dropout(0.2)(layers.Dense(8, activation="relu")(hidden))
    outputs = {"kind": layers.Dense(CLASSES)(hidden), "size": layers.Dense(1)(hidden)}
    model = keras.Model({"a": a, "b": b}, outputs)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.RMSprop(0.01),
        {"kind": losses, "size": "mse"},
        metrics={"size": ["mae"]},
        loss_weights={"kind": 1.0, "size": 0.3},
        jit_compile=BACKEND == "jax",
    )
    (x, y), (other, _) = rows(), rows(seed=2)
    targets = {"kind": y, "size": x.sum(-1, keepdims=True)}
    yield case(model, ({"a": x, "b": other}, targets))


def several_steps_at_once() -> Program:
    """6 batches in executions of 4: the last one of an epoch is short."""
    model = compiled(steps_per_execution=4)
    yield case(model, validation_data=rows(20, seed=1))


def bad_sample() -> Program:
    """Its loss is no number: that batch, and those around it, are skipped."""
    weights = np.ones(SAMPLES, "float32")
    weights[33] = np.nan
    yield case(sample_weight=weights)


def convolution() -> Program:
    """Augmentation, convolution, statistics and dropout."""
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Reshape((4, 3, 1)),
            layers.RandomFlip(),
            layers.Conv2D(4, 2),
            layers.BatchNormalization(),
            layers.SpatialDropout2D(0.2),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )
    yield case(compiled(model, metrics=["accuracy"]), validation_data=rows(20, seed=1))


class Subclassed(keras.Model):
    """Is built by its first batch, and has a loss and a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.add_weight(shape=(CLASSES,), name="scale")
        self.blocks = [layers.Dense(8, activation="relu"), layers.Dense(CLASSES)]
        self.dropout = layers.Dropout(0.3)

    def call(self, x: Any, training: bool = False) -> Any:
        hidden = self.dropout(self.blocks[0](x), training=training)
        scores = self.blocks[1](hidden) * (1 + self.scale)
        self.add_loss(0.01 * ops.mean(ops.square(scores)))
        return scores


def subclassed() -> Program:
    yield case(compiled(Subclassed()), validation_data=rows(20, seed=1))


class Blurred(Subclassed):
    """A training step of its own, with noise from a seed generator."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = keras.random.SeedGenerator(3)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            x = x + 0.1 * keras.random.normal(ops.shape(x), seed=self.noise)
        return super().call(x, training=training)

    def train_step(self, *state_and_data: Any) -> Any:
        *state, (x, y) = state_and_data
        return super().train_step(*state, (x * 2.0, y))


def own_train_step() -> Program:
    model = Blurred()
    yield case(compiled(model))


def stateful_rnn() -> Program:
    """States go from batch to batch and into the next epoch.

    On PyTorch it learns nothing: Keras overwrites the state that a gradient needs.
    """
    learns = BACKEND != "torch"
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(4, FEATURES)),
            layers.Reshape((4, 3)),
            layers.GRU(4, stateful=True, dropout=0.2, trainable=learns),
            layers.Dense(CLASSES),
        ]
    )
    yield case(compiled(model), rows(24), batch_size=4, shuffle=False)


def two_fits() -> Program:
    """What is finished is not trained again; the second one trains more layers."""
    model = noisy()
    model.layers[1].trainable = False
    yield case(compiled(model), epochs=2)
    model.layers[1].trainable = True
    random.random()
    yield case(compiled(model, keras.optimizers.SGD(0.01)), epochs=2)


def _falling(epoch: int, rate: float) -> float:
    return rate * 0.9


def callbacks() -> Program:
    """Early stopping ends this run before its last epoch: no epoch is good enough."""
    x, y = rows()
    found = case(validation_data=(x, (y + 1) % CLASSES), epochs=7)
    checkpoint = keras.callbacks.ModelCheckpoint
    found.callbacks += [
        keras.callbacks.EarlyStopping(
            patience=2, restore_best_weights=True, start_from_epoch=2, min_delta=9
        ),
        keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=0.2),
        keras.callbacks.LearningRateScheduler(_falling),
        keras.callbacks.CSVLogger("log.csv"),
        checkpoint("{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=3),
        checkpoint("best.weights.h5", save_weights_only=True, save_best_only=True),
        keras.callbacks.TerminateOnNaN(),
    ]
    yield found


def swapped_averages() -> Program:
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)
    found = case(compiled(optimizer=optimizer), validation_data=rows(20, seed=1))
    found.callbacks.append(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
    yield found


class Counter(keras.callbacks.Callback):
    """Plain attributes of every kind, which act on training."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.best = 0, None
        self.names: dict[str, list[int]] = {}
        self.total = np.zeros(2)
        self.numbers = np.random.default_rng(4)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = float(logs["loss"])
        self.count += 1
        self.best = loss if self.best is None else min(self.best, loss)
        self.names.setdefault(f"batch {batch % 3}", []).append(self.count)
        self.total += np.array([loss, self.numbers.random()])
        self.model.optimizer.learning_rate = 0.01 * (1 + self.count % 3)


class Mean(keras.callbacks.Callback):
    """A running mean behind ``state_dict``, out of sight of everybody else."""

    def __init__(self) -> None:
        super().__init__()
        cell = [0.0]
        self._read, self._write = (lambda: cell[0]), (lambda v: cell.__setitem__(0, v))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self._read()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._write(state["mean"])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._write(0.9 * self._read() + 0.1 * float(logs["loss"]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.01 / (1 + self._read())


class Budget:
    """An object of the user's that is no callback: ``stateful={"budget": ...}``."""

    def __init__(self) -> None:
        self.spent = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"spent": self.spent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.spent = state["spent"]

    def spend(self, batch: int, logs: Any) -> None:
        self.spent += float(logs["loss"])


def own_callbacks() -> Program:
    budget = Budget()
    found = case()
    spending = keras.callbacks.LambdaCallback(on_train_batch_end=budget.spend)
    found.callbacks += [Counter(), Mean(), spending]
    found.stateful["budget"] = budget
    found.others.append(budget)
    yield found


def shrinking() -> Any:
    """A schedule whose rate is in its closure."""
    rate = 0.05

    def schedule(epoch: int, now: float) -> float:
        nonlocal rate
        rate *= 0.8
        return rate

    return schedule


def counted(batch: int, logs: Any, seen: list[int] = []) -> None:  # noqa: B006
    """A function whose state is a default argument."""
    seen.append(batch)
    random.seed(len(seen))


class Towards(keras.callbacks.Callback):
    """Moves weights towards those of the beginning, and averages of the last three."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.first = self.model.get_weights()
        self._last: queue.Queue[Any] = queue.Queue(3)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        weights = self.model.get_weights()
        if self._last.full():
            self._last.get()
        self._last.put(weights[0])
        average = sum(self._last.queue) / len(self._last.queue)
        self.model.set_weights(
            [
                0.9 * w + 0.1 * f
                for w, f in zip([average, *weights[1:]], self.first, strict=True)
            ]
        )


def state_in_functions_and_queues() -> Program:
    """And what a callback keeps in ``on_train_begin``, in a script without a seed."""
    found = case()
    found.callbacks += [
        keras.callbacks.LearningRateScheduler(shrinking()),
        keras.callbacks.LambdaCallback(on_train_batch_end=counted),
        Towards(),
    ]
    yield found


class Moody(keras.Model):
    """A model whose steps run as Python, and remember in plain attributes."""

    def __init__(self, inner: keras.Model) -> None:
        super().__init__()
        self.inner, self._steps, self.recent = inner, 0, [0.0]
        self.sums = np.zeros(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)

    def train_step(self, data: Any) -> Any:
        self._steps += 1
        logs = super().train_step(data)
        self.recent = [*self.recent[-2:], float(logs["loss"])]
        self.sums[self._steps % 3] += self.recent[-1]
        rate = 0.01 / (1 + self._steps + sum(self.recent) + self.sums.sum())
        self.optimizer.learning_rate = rate
        return logs


class Weighted(keras.regularizers.Regularizer):
    """A regularizer with a variable, which its calls change."""

    def __init__(self) -> None:
        self.factor = keras.Variable(0.1, trainable=False)

    def __call__(self, weights: Any) -> Any:
        self.factor.assign(0.99 * self.factor)
        return self.factor * ops.sum(weights**2)


def state_of_steps() -> Program:
    inner = noisy()
    inner.layers[0].kernel_regularizer = Weighted()
    model = Moody(inner)
    model.build((None, FEATURES))
    yield case(compiled(model, run_eagerly=True))


class Two(keras.optimizers.Optimizer):
    """An optimizer that has one for each layer."""

    def __init__(self, pairs: list[Any]) -> None:
        super().__init__(learning_rate=0.0)
        self.pairs = pairs

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        for optimizer, layer in self.pairs:
            optimizer.build(layer.trainable_variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        if not self.built:
            self.build(trainable_variables)
        by_id = {id(v): g for v, g in zip(trainable_variables, grads, strict=True)}
        for optimizer, layer in self.pairs:
            mine = layer.trainable_variables
            optimizer.apply([by_id[id(v)] for v in mine], mine)


def optimizers_in_an_optimizer() -> Program:
    model = noisy()
    inner = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01, momentum=0.9)
    pairs = list(zip(inner, (model.layers[0], model.layers[2]), strict=True))
    yield case(compiled(model, Two(pairs)))


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 3 and len(self.model.history.epoch) == 1:
            self.model.stop_training = True


def stops_amid_an_epoch() -> Program:
    found = case(epochs=4, validation_data=rows(20, seed=1))
    found.callbacks.append(Stop())
    yield found


arrays_asked_to_stop = arrays


def workers() -> Program:
    """One of two processes, which find each other as the documentation says."""
    import os

    count, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    x, y = rows(48)
    batch = 2 * BATCH // count if BACKEND == "jax" else 2 * BATCH
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = compiled()
    elif BACKEND == "jax":
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        keras.distribution.initialize()
        parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(parallel)
        model, x, y = compiled(), x[rank::count], y[rank::count]
    else:
        model = compiled()
    found = case(model, (x, y), batch_size=batch)
    found.callbacks.append(keras.callbacks.ReduceLROnPlateau("loss", patience=0))
    yield found
