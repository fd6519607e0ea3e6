"""A backend's own objects, which a loop may have beside those of Keras."""

from typing import Any

import keras

BACKEND = keras.backend.backend()

if BACKEND == "tensorflow":
    import tensorflow as tf

    def objects() -> dict[str, Any]:
        generator = tf.random.Generator.from_seed(3)
        return {"weights": tf.Variable([1.0, 2.0]), "generator": generator}

    def step(run: Any, given: dict[str, Any]) -> None:
        given["weights"].assign_add(given["generator"].uniform((2,)))

    def values(run: Any, given: dict[str, Any]) -> Any:
        return [given["weights"].numpy(), given["generator"].state.numpy()]

elif BACKEND == "jax":
    import jax

    def objects() -> dict[str, Any]:
        return {"state": {"weights": jax.numpy.arange(2.0), "key": jax.random.key(3)}}

    def step(run: Any, given: dict[str, Any]) -> None:
        key, now = jax.random.split(run.state["key"])
        weights = run.state["weights"] + jax.random.uniform(now, (2,))
        run.state = {"weights": weights, "key": key}

    def values(run: Any, given: dict[str, Any]) -> Any:
        key = jax.random.key_data(run.state["key"])
        return [jax.device_get(each) for each in (run.state["weights"], key)]

else:
    import torch

    def objects() -> dict[str, Any]:
        linear = torch.nn.Linear(2, 1)
        return {
            "linear": linear,
            "adam": torch.optim.Adam(linear.parameters()),
            "generator": torch.Generator().manual_seed(3),
        }

    def step(run: Any, given: dict[str, Any]) -> None:
        given["adam"].zero_grad()
        given["linear"](torch.rand(2, generator=given["generator"])).sum().backward()
        given["adam"].step()

    def values(run: Any, given: dict[str, Any]) -> Any:
        moments = [
            moment.numpy()
            for of_one in given["adam"].state_dict()["state"].values()
            for moment in of_one.values()
        ]
        weights = [each.detach().numpy() for each in given["linear"].parameters()]
        return [*weights, *moments, given["generator"].get_state().numpy()]
