"""What each process of a gang does; `test_torch_parts` compares what they tell.

    python torch_parts.py FILE     # with the variables of `gang.environment`

Functions named `case_...` return what JSON can hold. `exact` runs in one process, too.
"""

import hashlib
import json
import os
import sys
from contextlib import ExitStack
from datetime import timedelta

import keras
import numpy as np
import torch
from torch import distributed

from resilient.data.arrays.torch import RankArrays
from resilient.distributed.strategies.torch import part
from resilient.distributed.strategies.torch_dp import losses, start
from resilient.distributed.strategies.torch_dp.averages import tensor_of
from resilient.distributed.strategies.torch_dp.gradients import averaged_gradients
from resilient.distributed.strategies.torch_dp.metrics import MergedLogs
from resilient.errors import ResilientError

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
TIMEOUT = timedelta(seconds=60)


def share(text):
    """Rank 0's text."""
    texts = [text]
    distributed.broadcast_object_list(texts, 0)
    return texts[0]


def digest(values):
    """Of all bytes."""
    found = hashlib.sha256()
    for value in values:
        found.update(tensor_of(value).detach().numpy().tobytes())
    return found.hexdigest()


def trained(model):
    """What has to be the same on all ranks."""
    return digest([*model.trainable_variables, *model.optimizer.variables])


def refused(function, *arguments, **options):
    """The error that is raised."""
    try:
        function(*arguments, **options)
    except (ResilientError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def batches(count, seed, features=6, size=8):
    """This rank's parts of random batches."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        x = generator.normal(size=(size, features)).astype("float32")
        yield part((torch.as_tensor(x), torch.as_tensor(x[:, :1] * 2)), RANK, WORLD)


def steps(model, count=6, seed=3):
    """Train, with averaged gradients."""
    start.broadcast_variables(model.variables)
    before = trained(model)
    with averaged_gradients(model, distributed.group.WORLD):
        for x, y in batches(count, seed):
            model.train_on_batch(x, y)
    after = trained(model)
    assert after != before
    return {"trained": after, "own": digest(model.non_trainable_variables)}


def network(optimizer="adam", cls=keras.Sequential, seed=None, loss="mse", **options):
    """Compiled; other weights on each rank until they are broadcast."""
    keras.utils.set_random_seed(RANK if seed is None else seed)
    model = cls(
        [
            keras.Input((6,)),
            keras.layers.Dense(400, activation="relu", **options),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(900),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, loss=loss)
    return model


# One process and several ------------------------------------------------------------


def whole_numbers(samples, seed=0):
    """Small ones, so that sums are exact in every order, in float32 as well."""
    generator = np.random.default_rng(seed)
    x = generator.integers(-1, 2, size=(samples, 3)).astype("float64")
    return x, x @ np.array([[1.0], [-2.0], [3.0]]) + 1


class TwoLosses(keras.Model):
    """Two outputs, a metric in a layer, and a list of metrics."""

    def __init__(self):
        super().__init__(dtype="float64")
        init = keras.initializers.Constant(0.5)
        self.one = keras.layers.Dense(1, kernel_initializer=init, dtype="float64")
        self.two = keras.layers.Dense(1, kernel_initializer=init, dtype="float64")
        self.seen = [keras.metrics.Mean(name="seen", dtype="float64")]

    def call(self, x):
        self.seen[0].update_state(x)
        return {"a": self.one(x), "b": self.two(x)}


def exact():
    """History, weights and the state of the random numbers; of one epoch shuffled."""
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    try:
        return exactly_trained()
    finally:
        keras.config.set_floatx(before)


def exactly_trained():
    keras.utils.set_random_seed(1)
    model = TwoLosses()
    model.compile(
        keras.optimizers.SGD(0.5),
        loss="mse",
        metrics={"a": ["mae", keras.metrics.MeanSquaredError(name="m")], "b": ["mae"]},
    )
    x, y = whole_numbers(16)
    model(x[:1])
    model.reset_metrics()
    rank = {"rank": RANK, "world": WORLD, "share": share}
    data, validation = (x, {"a": y, "b": -y}), whole_numbers(8, seed=1)
    validation = (validation[0], {"a": validation[1], "b": validation[1]})
    fitting = {"epochs": 1, "verbose": 0}
    with ExitStack() as entered:
        if WORLD > 1:
            start.broadcast_variables(model.variables)
            entered.enter_context(averaged_gradients(model, distributed.group.WORLD))
            entered.enter_context(MergedLogs(model, distributed.group.WORLD))
            x, y = RankArrays(*data, batch_size=8, shuffle=True, **rank), None
            validation = RankArrays(*validation, batch_size=8, **rank)
        else:
            (x, y), fitting = data, fitting | {"batch_size": 8}
        history = model.fit(x, y, validation_data=validation, **fitting)
        counts = [v.numpy().tolist() for v in model.metrics_variables]
    return {
        "history": {k: [float(v).hex() for v in h] for k, h in history.history.items()},
        "weights": [v.numpy().tolist() for v in model.trainable_variables],
        "random": hashlib.sha256(torch.get_rng_state().numpy()).hexdigest(),
        "counts": counts,
        "left": sorted({"apply", "evaluate"} & {*vars(model), *vars(model.optimizer)}),
    }


def case_exact():
    return exact()


# Equal bytes on all ranks -----------------------------------------------------------


def case_adam():
    return steps(network())


def case_all_options():
    optimizer = keras.optimizers.SGD(
        0.01,
        momentum=0.9,
        gradient_accumulation_steps=2,
        use_ema=True,
        ema_overwrite_frequency=2,
        global_clipnorm=1.0,
    )
    return steps(network(optimizer))


def case_loss_scale():
    """One rank overflows: all halve the scale and leave the step out."""
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(), initial_scale=8.0
    )
    model = network(optimizer)
    told = steps(model)
    with averaged_gradients(model, distributed.group.WORLD):
        for x, y in batches(1, seed=9):
            model.train_on_batch(x, y * (float("inf") if RANK else 1.0))
    iterations = int(optimizer.inner_optimizer.iterations)
    scale = float(optimizer.dynamic_scale)
    return told | {"scale": scale, "iterations": iterations, "end": trained(model)}


class OneBranch(keras.Sequential):
    """The last rank alone has a gradient for one of its weights, another none at all"""

    def build(self, *_):
        super().build(*_)
        self.extra = self.add_weight(shape=(3,), initializer="ones", name="extra")
        self.unused = self.add_weight(shape=(3,), initializer="ones", name="unused")

    def call(self, x, training=None):
        y = super().call(x, training=training)
        return y * keras.ops.sum(self.extra) if RANK == WORLD - 1 else y


def case_gradients_on_one_rank():
    model = network("sgd", cls=OneBranch)
    return steps(model) | {"unused": model.unused.numpy().tolist()}


class TwoPasses(keras.Sequential):
    """Two backward passes, whose sum is applied."""

    def train_step(self, data):
        x, y = data[:2]
        self.zero_grad()
        for _ in range(2):
            self.compute_loss(x, y, self(x, training=True)).backward()
        weights = self.trainable_weights
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in weights], weights)
        return {}


def case_two_passes():
    return steps(network("sgd", cls=TwoPasses))


class Adversaries(keras.Model):
    """Two networks, each with its optimizer; one pass goes through both."""

    def __init__(self):
        super().__init__()
        self.maker, self.judge = keras.layers.Dense(6), keras.layers.Dense(1)
        self.others = {"judge": keras.optimizers.Adam(0.01)}

    def call(self, x):
        return self.judge(self.maker(x))

    def train_step(self, data):
        x = data[0]
        for part_, optimizer, sign in (
            (self.judge, self.others["judge"], 1),
            (self.maker, self.optimizer, -1),
        ):
            self.zero_grad()
            (sign * self(x).mean()).backward()
            weights = part_.trainable_weights
            with torch.no_grad():
                optimizer.apply([v.value.grad for v in weights], weights)
        return {}


def case_two_optimizers():
    keras.utils.set_random_seed(RANK)
    model = Adversaries()
    model(np.zeros((1, 6), "float32"))
    model.compile("adam")
    told = steps(model)
    return told | {"other": digest(model.others["judge"].variables)}


# Errors -----------------------------------------------------------------------------


def case_gradient_errors():
    found = {}
    model = network(seed=0)
    with averaged_gradients(model, distributed.group.WORLD):
        weights = model.trainable_variables
        (kernel,) = weights[:1]
        dense = torch.ones(tuple(kernel.shape))
        apply = model.optimizer.apply
        found["sparse"] = refused(apply, [dense.to_sparse()], [kernel])
        found["dtype"] = refused(apply, [dense.double()], [kernel])
        some = weights[RANK : RANK + 1]
        zeros = [torch.zeros(tuple(v.shape)) for v in some]
        found["others"] = refused(apply, zeros, some)
        kernel.overwrite_with_gradient = True
        found["overwriting"] = refused(apply, [dense], [kernel])
    summed = network(loss=keras.losses.MeanSquaredError(reduction="sum"))
    found["sum"] = refused(losses.refuse_sums, summed)
    active = network(activity_regularizer="l2")
    found["activity"] = refused(losses.refuse_sums, active)
    found["mean"] = refused(losses.refuse_sums, network())
    return found


def case_sharded():
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DeviceMesh

    mesh = DeviceMesh("cpu", list(range(WORLD)))
    module = torch.nn.Sequential(torch.nn.Linear(6, 4))
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.TorchModuleWrapper(module)]
    )
    before = refused(start.refuse_sharded, model)
    fully_shard(module, mesh=mesh)
    sharded = keras.Sequential([keras.layers.TorchModuleWrapper(module)])
    return {"before": before, "sharded": refused(start.refuse_sharded, sharded)}


def case_broadcast():
    kinds = [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool]
    values = [torch.full((3, 2), RANK).to(kind) for kind in kinds]
    values += [torch.tensor(RANK), torch.empty(0), torch.full((2, 3), RANK).T]
    start.broadcast_variables(values)
    return [value.tolist() for value in values]


class Counting(keras.metrics.Metric):
    """Keeps its count where nobody finds it."""

    count = 0

    def update_state(self, *_, **__):
        self.count += RANK + 1

    def result(self):
        return self.count


class OwnLogs(keras.Sequential):
    """Logs that are no metrics."""

    value = RANK

    def train_step(self, data):
        super().train_step(data)
        return {"mine": self.value, "ours": 2.0}


def logs_of(model, metrics=()):
    model.compile("sgd", "mse", metrics=list(metrics))
    host = distributed.group.WORLD
    with averaged_gradients(model, host), MergedLogs(model, host):
        data = batches(2, seed=1)
        return model.fit(data, verbose=0, steps_per_epoch=2).history


def case_logs():
    class Unmerged(keras.metrics.Mean):
        def add_variable(self, *arguments, **options):
            return super().add_variable(*arguments, **options | {"aggregation": "none"})

    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own = logs_of(network(cls=OwnLogs, seed=0))
    text = network(cls=OwnLogs, seed=0)
    text.value = "text"
    return {
        "own": own,
        "said": [str(w.message) for w in caught if "Not bit-exact" in str(w.message)],
        "text": refused(logs_of, text),
        "hidden": refused(logs_of, network(seed=0), [Counting()]),
        "none": refused(logs_of, network(seed=0), [MetricOf(Unmerged)]),
    }


def MetricOf(cls):
    """A metric with another one inside."""

    class Outer(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="outer")
            self.inner = cls()

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.inner.update_state(y_pred)

        def result(self):
            return self.inner.result()

    return Outer()


def case_order():
    """Of arrays: other random states on each rank."""
    found = {}
    for shuffle in (True, "batch", False):
        torch.manual_seed(RANK)
        x = np.arange(12)
        data = RankArrays(
            x, batch_size=4, shuffle=shuffle, rank=RANK, world=WORLD, share=share
        )
        rows = [batch.tolist() for batch in data.get_torch_dataloader()]
        found[str(shuffle)] = [rows, torch.randint(1000, (1,)).item()]
    return found


def main(file):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=TIMEOUT)
    told = {}
    for name, case in list(globals().items()):
        if name.startswith("case_"):
            print(name, flush=True)
            told[name] = case()
    with open(f"{file}.{RANK}", "w", encoding="utf-8") as opened:
        json.dump(told, opened)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
