"""The state of a random generator: JSON, comparable, and set in another one."""

import json
import random

import numpy as np
import pytest

from resilient.serialization import rng

GENERATORS = {
    "python": lambda: random.Random(3),
    "numpy": lambda: np.random.default_rng(3),
    "bits": lambda: np.random.SFC64(3),
    "philox": lambda: np.random.Generator(np.random.Philox(3)),
    "legacy": lambda: np.random.RandomState(3),
    "seeds": lambda: np.random.SeedSequence([3, 2**70], spawn_key=(1, 2)),
    "seeds of an array": lambda: np.random.SeedSequence(np.arange(5)),
}


def draw(generator):
    if isinstance(generator, np.random.SeedSequence):
        return [each.generate_state(2).tolist() for each in generator.spawn(2)]
    if isinstance(generator, np.random.BitGenerator):
        return generator.random_raw(3).tolist()
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1) for _ in range(3)]
    return generator.normal(size=3).tolist()


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_goes_on_where_another_one_was(name):
    generator, other = GENERATORS[name](), GENERATORS[name]()
    draw(generator)
    state = rng.state(generator)
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    assert rng.state(other) != state
    expected = draw(generator)
    rng.set_state(other, json.loads(json.dumps(state)))
    assert rng.state(other) == state
    assert draw(other) == expected


@pytest.mark.parametrize("spawned", [0, 2])
def test_a_numpy_generator_spawns_where_another_one_did(spawned):
    first, second = np.random.default_rng(3), np.random.default_rng(4)
    first.spawn(spawned)
    rng.set_state(second, rng.state(first))
    assert draw(second.spawn(1)[0]) == draw(first.spawn(1)[0])


def test_only_generators_of_one_kind_take_each_others_states():
    bits = [np.random.MT19937(3), np.random.PCG64(3)]
    makers = (np.random.Generator, np.random.RandomState)
    others = [make(each) for make in makers for each in bits]
    kinds = [rng.kind(each) for each in (*others, random.Random(3))]
    assert len({*kinds}) == len(kinds) == 5
    assert rng.kind(np.random.default_rng(9)) == rng.kind(np.random.PCG64(3))


def test_global_generators_are_those_of_the_libraries():
    found = rng.global_generators()
    assert {"python", "numpy"} <= {*found} <= {"python", "numpy", "torch"}
    with rng.kept_states(found):
        np.random.seed(7)
        random.seed(7)
        expected = random.random(), np.random.random()
        states = rng.states({"python": random.Random(7), "numpy": rng.NUMPY})
    before = rng.states(found)
    with (
        rng.drawing_from(found["python"], states["python"]),
        rng.kept_states({"numpy": found["numpy"]}),
    ):
        np.random.seed(7)
        assert (random.random(), np.random.random()) == expected
    assert rng.states(found) == before


def test_a_torch_generator_goes_on_where_another_one_was(backend):
    if backend != "torch":
        pytest.skip("about torch's own generators")
    import torch

    first, second = torch.Generator().manual_seed(3), torch.Generator()
    torch.rand(3, generator=first)
    rng.set_state(second, json.loads(json.dumps(rng.state(first))))
    drawn = [torch.rand(3, generator=each).tolist() for each in (first, second)]
    assert drawn[0] == drawn[1]
    assert rng.is_generator(first)
    assert "torch" in rng.global_generators()


def test_a_key_of_jax_is_made_again(backend):
    if backend != "jax":
        pytest.skip("about JAX's keys")
    import jax

    key = jax.random.split(jax.random.key(3, impl="rbg"), 2)
    assert rng.is_jax_key(key)
    assert not rng.is_jax_key(jax.random.key_data(key))
    again = rng.jax_key(*rng.jax_key_content(key))
    assert again.dtype == key.dtype
    assert (jax.random.key_data(again) == jax.random.key_data(key)).all()
