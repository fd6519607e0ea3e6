"""Custom ``train_step`` in each backend's way, with one optimizer or two."""

from typing import Any

import keras
from keras import layers

from .parts import CLASSES, case, compiled, noisy, validation
from .registry import Case, scenario

BACKEND = keras.backend.backend()


class Custom(keras.Model):
    """Its own step: noise from a SeedGenerator, a metric of its own, extra logs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = noisy()
        self.noise = keras.random.SeedGenerator(3)
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training)

    def blurred(self, x: Any) -> Any:
        x = keras.ops.convert_to_tensor(x)
        return x + 0.1 * keras.random.normal(keras.ops.shape(x), seed=self.noise)

    if BACKEND == "tensorflow":

        def train_step(self, data: Any) -> dict[str, Any]:
            import tensorflow as tf

            x, y = data
            x = self.blurred(x)
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            self.mean.update_state(loss)
            return {"mean": self.mean.result(), "other": loss}

    elif BACKEND == "torch":

        def train_step(self, data: Any) -> dict[str, Any]:
            import torch

            x, y = data
            x = self.blurred(x) + 0.01 * torch.randn(1)
            self.zero_grad()
            loss = self.compute_loss(x, y, self(x, training=True))
            loss.backward()
            weights = self.trainable_variables
            with torch.no_grad():
                gradients = [weight.value.grad for weight in weights]
                self.optimizer.apply(gradients, weights)
            self.mean.update_state(loss.detach())
            return {"mean": self.mean.result(), "other": loss.detach()}

    else:

        def train_step(self, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
            import jax

            trainable, non_trainable, slots, metrics = state
            x, y = data
            non_trainable = list(non_trainable)
            at = [v is self.noise.state for v in self.non_trainable_variables].index(
                True
            )
            key = keras.ops.cast(non_trainable[at], "uint32")
            x = x + 0.1 * jax.random.normal(key, x.shape)
            non_trainable[at] = non_trainable[at] + 1
            gradient = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
            (loss, aux), gradients = gradient(
                trainable,
                non_trainable,
                metrics,
                x,
                y,
                None,
                training=True,
                optimizer_variables=slots,
            )
            _, _, non_trainable, metrics = aux
            trainable, slots = self.optimizer.stateless_apply(
                slots, gradients, trainable
            )
            metrics = list(metrics)
            own = {id(v): i for i, v in enumerate(self.metrics_variables)}
            places = [own[id(v)] for v in self.mean.variables]
            updated = self.mean.stateless_update_state(
                [metrics[place] for place in places], loss
            )
            for place, value in zip(places, updated, strict=True):
                metrics[place] = value
            logs = {"mean": self.mean.stateless_result(updated), "other": loss}
            return logs, (trainable, non_trainable, slots, metrics)


@scenario("train_batch_end@1:3", "train_batch_end@1:5", save_freq=2, in_exact=True)
def custom_train_step() -> Case:
    return case(compiled(Custom(), metrics=None))


class Adversaries(keras.Model):
    """Two networks, two optimizers: the second is an attribute, as in GANs."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential(
            [keras.Input((4,)), layers.Dense(64), layers.Reshape((8, 8, 1))]
        )
        self.critic = noisy()
        self.seeds = keras.random.SeedGenerator(5)

    def compile(self, critic_optimizer: Any, **kwargs: Any) -> None:
        super().compile(**kwargs)
        self.critic_optimizer = critic_optimizer
        self.critic_optimizer.build(self.critic.trainable_variables)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.critic(x, training=training)

    def losses_of(self, x: Any, y: Any) -> tuple[Any, Any]:
        latent = keras.random.normal((8, 4), seed=self.seeds)
        fake = self.generator(latent)
        judged = self.critic(fake, training=True)
        real = self.compute_loss(x, y, self.critic(x, training=True))
        return real + keras.ops.mean(judged**2), -keras.ops.mean(judged[:, 0])

    if BACKEND == "tensorflow":

        def train_step(self, data: Any) -> dict[str, Any]:
            import tensorflow as tf

            with tf.GradientTape(persistent=True) as tape:
                critic, generator = self.losses_of(*data)
            self._apply(
                tape.gradient(critic, self.critic.trainable_variables),
                tape.gradient(generator, self.generator.trainable_variables),
            )
            return {"critic": critic, "generator": generator}

    elif BACKEND == "torch":

        def train_step(self, data: Any) -> dict[str, Any]:
            import torch

            critic, generator = self.losses_of(*data)
            first = [v.value for v in self.critic.trainable_variables]
            second = [v.value for v in self.generator.trainable_variables]
            gradients = (
                torch.autograd.grad(critic, first, retain_graph=True),
                torch.autograd.grad(generator, second),
            )
            with torch.no_grad():
                self._apply(*map(list, gradients))
            return {"critic": critic.detach(), "generator": generator.detach()}

    else:

        def train_step(self, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
            """Eager JAX: variables are used as in the other backends."""
            import jax

            for variable, value in zip(self._variables(), _flat(state), strict=True):
                variable.assign(value)
            names = (self.critic, self.generator)
            weights = [v for part in names for v in part.trainable_variables]
            seeds = list(self.non_trainable_variables)

            def losses(values: Any) -> Any:
                mapping = list(zip(weights, values, strict=True))
                with keras.StatelessScope(state_mapping=mapping) as scope:
                    critic, generator = self.losses_of(*data)
                drawn = [scope.get_current_value(v) for v in seeds]
                return (critic, generator), drawn

            values = [v.value for v in weights]
            parts = jax.jacrev(losses, has_aux=True)(values)
            (by_critic, by_generator), drawn = parts
            for variable, value in zip(seeds, drawn, strict=True):
                variable.assign(variable.value if value is None else value)
            count = len(self.critic.trainable_variables)
            self._apply(by_critic[:count], by_generator[count:])
            values, state = [v.value for v in self._variables()], list(state)
            logs = {"weight": keras.ops.mean(self.critic.trainable_variables[0].value)}
            for place, part in enumerate(state):
                state[place] = [values.pop(0) for _ in part]
            return logs, tuple(state)

        def _variables(self) -> list[Any]:
            return [
                *self.trainable_variables,
                *self.non_trainable_variables,
                *self.optimizer.variables,
                *self.metrics_variables,
            ]

    def _apply(self, critic: list[Any], generator: list[Any]) -> None:
        self.critic_optimizer.apply(critic, self.critic.trainable_variables)
        self.optimizer.apply(generator, self.generator.trainable_variables)


def _flat(state: Any) -> list[Any]:
    return [value for part in state for value in part]


@scenario("train_batch_end@0:4", "train_batch_end@1:3", save_freq=3)
def two_optimizers() -> Case:
    model = Adversaries()
    model.compile(
        critic_optimizer=keras.optimizers.Adam(0.01),
        optimizer=keras.optimizers.RMSprop(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=BACKEND == "jax",
        jit_compile=False,
    )
    model.optimizer.build(model.generator.trainable_variables)
    return case(model, epochs=2)


class OwnLoss(keras.Model):
    """An own loss, in training and in validation, with an own variable."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = noisy()
        self.scale = self.add_weight(shape=(CLASSES,), name="scale")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.inner(x, training=training) * (1 + self.scale)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        return loss + 0.1 * keras.ops.sum(keras.ops.square(self.scale))


@scenario("test_batch_end@1:2", save_freq=4, in_exact=True)
def own_loss() -> Case:
    return case(compiled(OwnLoss()), validation_data=validation())
