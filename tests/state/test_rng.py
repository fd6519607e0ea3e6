"""Every global generator goes on bit for bit from a captured state."""

import json
import random
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from support.draws import draw
from support.gang import run_alone

from resilient import keras_internals
from resilient.backends import Backend
from resilient.errors import (
    BackendNotAvailableError,
    NotExactWarning,
    NotSupportedError,
)
from resilient.serialization.json_values import decode, encode
from resilient.state import rng

pytestmark = pytest.mark.usefixtures("seeded")


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def random_state(adapter: Backend) -> Any:
    """A backend's state, as a checkpoint gives it back."""
    return decode(through_json(encode(adapter.random_state(), {}, "state")), {})


def test_drawing_again_after_a_restore_gives_the_same_numbers(
    adapter: Backend,
) -> None:
    """Also twice from one state, and after other seeds were set in between."""
    draw()
    state = through_json(rng.capture(adapter))
    first = draw()
    rng.restore(adapter, state)
    assert draw() == first
    keras.utils.set_random_seed(99)
    assert draw() != first
    rng.restore(adapter, state)
    assert draw() == first


def test_a_fresh_process_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    """One process captures and draws on; another, unseeded, restores and draws."""
    start = (
        "import json, sys, keras\n"
        "from support.draws import draw\n"
        "from resilient.state import rng\n"
        "from resilient.backends import get_backend\n"
    )
    save = (
        "keras.utils.set_random_seed(5); draw()\n"
        "state = rng.capture(get_backend())\n"
        "json.dump([state, draw()], open(sys.argv[1], 'w'))\n"
    )
    load = (
        "state, first = json.load(open(sys.argv[1]))\n"
        "rng.restore(get_backend(), state)\n"
        "print(draw() == first)\n"
    )
    script, state = tmp_path / "script.py", tmp_path / "state.json"
    script.write_text(start + save)
    assert run_alone(script, state) == (0, "")
    script.write_text(start + load)
    assert run_alone(script, state) == (0, "True\n")


def test_capturing_draws_nothing(adapter: Backend) -> None:
    """An uninterrupted run draws the same numbers whether or not it saves."""
    draw()  # TensorFlow's global generator is made, unseeded, by its first use
    first_state = through_json(rng.capture(adapter))
    assert through_json(rng.capture(adapter)) == first_state
    first = draw()
    rng.restore(adapter, first_state)
    for _ in range(3):
        rng.capture(adapter)
    assert draw() == first


def test_it_is_told_which_generators_were_drawn_from(adapter: Backend) -> None:
    before = rng.capture(adapter)
    assert rng.drawn_from(before, rng.capture(adapter)) == set()
    random.random()
    assert rng.drawn_from(before, rng.capture(adapter)) == {"python"}
    np.random.rand()
    assert rng.drawn_from(before, rng.capture(adapter)) == {"python", "numpy"}


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="elsewhere nobody may have loaded torch"
)
def test_it_is_told_that_torch_was_drawn_from(adapter: Backend) -> None:
    import torch

    before = rng.capture(adapter)
    torch.rand(1)
    assert rng.drawn_from(before, rng.capture(adapter)) == {"torch"}


@pytest.mark.parametrize("draws", [0, 1, 2])
def test_half_of_a_pair_of_normals_is_kept(adapter: Backend, draws: int) -> None:
    """Both Python and numpy draw normals in pairs and hold the second back."""
    for _ in range(draws):
        random.gauss(0, 1)
        np.random.normal()
    state = through_json(rng.capture(adapter))
    first = random.gauss(0, 1), np.random.normal()
    rng.restore(adapter, state)
    assert (random.gauss(0, 1), np.random.normal()) == first


def test_kerass_seed_generator_is_made_where_the_saved_run_had_one(
    adapter: Backend,
) -> None:
    """Making it draws from Python's generator, which is set after it."""
    np.asarray(keras.random.uniform((2,)))
    state = through_json(rng.capture(adapter))
    first = np.asarray(keras.random.uniform((2,))).tolist(), random.random()
    keras_internals.set_global_seed_generator_state(None, adapter.assign)
    rng.restore(adapter, state)
    assert (np.asarray(keras.random.uniform((2,))).tolist(), random.random()) == first


def test_kerass_seed_generator_is_forgotten_where_the_saved_run_had_none(
    adapter: Backend,
) -> None:
    """So that its first use draws its seed from Python, as in the saved run."""
    keras_internals.set_global_seed_generator_state(None, adapter.assign)
    state = through_json(rng.capture(adapter))
    first = np.asarray(keras.random.uniform((2,))).tolist(), random.random()
    rng.restore(adapter, state)
    assert keras_internals.global_seed_generator_state() is None
    assert (np.asarray(keras.random.uniform((2,))).tolist(), random.random()) == first


def test_another_bit_generator_of_numpy_is_refused(adapter: Backend) -> None:
    """What replaced it has no legacy state to go back to."""
    original = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(0))
        with pytest.raises(NotSupportedError, match="PCG64"):
            rng.capture(adapter)
    finally:
        np.random.set_bit_generator(original)


class Library:
    """Stands for the adapter of a library that is loaded beside the backend."""

    name = "torch"
    state = 0

    def random_state(self) -> dict[str, Any]:
        return {"drawn": self.state}

    def set_random_state(self, state: dict[str, Any]) -> None:
        self.state = state["drawn"]


GENERATORS = rng._generators


@pytest.fixture
def torch_beside(backend: str, monkeypatch: pytest.MonkeyPatch) -> Library:
    if backend == "torch":
        pytest.skip("torch is the backend itself")
    library = Library()
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setattr(
        rng,
        "_generators",
        lambda name, backend: library if name == "torch" else GENERATORS(name, backend),
    )
    return library


def test_torch_loaded_beside_another_backend_is_captured(
    adapter: Backend, torch_beside: Library
) -> None:
    """A user's DataLoader draws from it."""
    torch_beside.state = 3
    state = through_json(rng.capture(adapter))
    torch_beside.state = 8
    rng.restore(adapter, state)
    assert torch_beside.state == 3


def test_a_library_that_is_gone_is_refused_by_name(
    adapter: Backend, torch_beside: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = through_json(rng.capture(adapter))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(rng, "_generators", GENERATORS)
    with pytest.raises(BackendNotAvailableError, match="torch"):
        rng.restore(adapter, state)


def test_other_cuda_devices_than_saved_are_named_in_a_warning(
    adapter: Backend,
) -> None:
    """The CPU's generator is restored all the same."""
    if adapter.name != "torch":
        pytest.skip("only torch has a generator for each device")
    import torch

    state = random_state(adapter)
    first = torch.rand(3)
    saved_elsewhere = state | {"cuda": [state["cpu"]] * (len(state["cuda"]) + 1)}
    with pytest.warns(NotExactWarning, match="CUDA"):
        adapter.set_random_state(saved_elsewhere)
    assert torch.equal(torch.rand(3), first)


def test_each_cuda_device_goes_on_with_its_own_numbers(
    adapter: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU generators stand for those of two devices."""
    if adapter.name != "torch":
        pytest.skip("only torch has a generator for each device")
    import torch

    devices = tuple(torch.Generator().manual_seed(seed) for seed in (3, 4))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", devices)
    state = random_state(adapter)
    first = [torch.rand(3, generator=each).tolist() for each in devices]
    adapter.set_random_state(state)
    assert [torch.rand(3, generator=each).tolist() for each in devices] == first
    assert first[0] != first[1]


@pytest.fixture
def tensorflow(backend: str) -> Iterator[types.ModuleType]:
    """TensorFlow, with a global generator for this test alone."""
    if backend != "tensorflow":
        pytest.skip("about TensorFlow's own generators")
    import tensorflow as tf

    before = tf.random.get_global_generator()
    yield tf
    tf.random.set_global_generator(before)


def test_tensorflows_private_names_are_still_there(
    tensorflow: types.ModuleType,
) -> None:
    """If one is gone: read tensorflow/python/eager/context.py, adapt our adapter."""
    from tensorflow.python.eager import context
    from tensorflow.python.ops import stateful_random_ops

    tensorflow.random.set_seed(12)
    names = vars(context.context())
    assert names.get("_seed") == 12, "context()._seed no longer holds the global seed"
    assert isinstance(names.get("_rng"), random.Random), (
        "context()._rng no longer draws the seeds of eager operations"
    )
    before = names["_rng"].getstate()
    tensorflow.random.uniform((1,))
    assert names["_rng"].getstate() != before, "eager operations draw from elsewhere"
    generator = tensorflow.random.get_global_generator()
    assert vars(stateful_random_ops).get("global_generator") is generator, (
        "stateful_random_ops.global_generator no longer holds the global generator"
    )


def test_no_global_generator_of_tensorflow_is_made_by_capturing(
    tensorflow: types.ModuleType, adapter: Backend
) -> None:
    """Making one is not deterministic and would hide that the run has none."""
    tensorflow.random.set_global_generator(None)
    assert adapter.random_state()["global_generator"] is None


def test_tensorflows_global_generator_goes_on_inside_traced_functions(
    tensorflow: types.ModuleType, adapter: Backend
) -> None:
    """Restored in place, so that a function traced before draws from it."""
    generator = tensorflow.random.Generator.from_seed(3)
    tensorflow.random.set_global_generator(generator)
    traced = tensorflow.function(lambda: generator.uniform((3,)))
    traced()
    state = random_state(adapter)
    first = traced().numpy().tolist()
    adapter.set_random_state(state)
    assert traced().numpy().tolist() == first


@pytest.mark.parametrize("live", ["none", "philox", "threefry"])
def test_tensorflows_global_generator_is_replaced_where_it_is_another(
    tensorflow: types.ModuleType, adapter: Backend, live: str
) -> None:
    """A fresh process has none yet; a changed script may have another algorithm."""
    make = tensorflow.random.Generator.from_seed
    tensorflow.random.set_global_generator(make(3))
    state = random_state(adapter)
    first = tensorflow.random.get_global_generator().uniform((3,)).numpy().tolist()
    other = None if live == "none" else make(4, alg=live)
    tensorflow.random.set_global_generator(other)
    adapter.set_random_state(state)
    again = tensorflow.random.get_global_generator()
    assert again.uniform((3,)).numpy().tolist() == first


def test_an_unseeded_tensorflow_stays_unseeded(
    tensorflow: types.ModuleType, adapter: Backend
) -> None:
    """Restoring "no global seed" does not fix one."""
    tensorflow.random.set_seed(None)
    state = random_state(adapter)
    assert state["seed"] is None
    adapter.set_random_state(state)
    draws = [tensorflow.random.uniform((4,)).numpy().tolist() for _ in range(2)]
    assert draws[0] != draws[1]


def test_restoring_says_nothing(adapter: Backend) -> None:
    """No warning where nothing changed."""
    state = through_json(rng.capture(adapter))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rng.restore(adapter, state)


def test_the_state_of_another_backend_gives_what_is_not_its_own(
    adapter: Backend,
) -> None:
    """Its seeds of Keras are the same 32 bits; nothing is said of what it has alone."""
    keras.random.uniform(())  # makes Keras's global generator
    state = through_json(rng.capture(adapter))
    first = random.random(), float(np.random.random())
    other = "torch" if adapter.name == "jax" else "jax"
    elsewhere = {**state, "backend": other, "backends": {}, "keras": [-2, 3]}
    rng.restore(adapter, elsewhere)
    seeds = rng.capture(adapter)["keras"]
    assert [number & 0xFFFFFFFF for number in seeds] == [2**32 - 2, 3]
    assert (random.random(), float(np.random.random())) == first
