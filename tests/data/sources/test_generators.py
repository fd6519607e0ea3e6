"""Generators that the data draws from: found wherever they are, and put back whole."""

import collections.abc
import dataclasses
import functools
import json
import random
import sys
import types

import keras
import numpy as np
import pytest

from resilient.backends import get_backend
from resilient.data.py_dataset.adapter import PyDatasetData
from resilient.data.source import SourceContext
from resilient.objects.attributes import generators, unclaimed
from resilient.serialization.json_values import decode, encode
from resilient.serialization.rng import set_state, state

pytestmark = [pytest.mark.sources, pytest.mark.waits]

RNG = np.random.default_rng(0)
OTHER = random.Random(0)
NORMAL = np.random.default_rng(1).normal
settings = types.ModuleType("settings_of_a_test")
settings.inner = types.ModuleType("settings_of_a_test.inner")
settings.inner.RNG = np.random.default_rng(2)
settings.inner.MINE = np.random.default_rng(3)


def found(**parts):
    return list(generators(parts).values())


def finds(value, *expected):
    """Whether exactly these objects are found, whatever their paths."""
    return list(map(id, found(x=value))) == list(map(id, expected))


def test_generators_in_the_globals_of_a_methods_module_are_found():
    class Data:
        def __getitem__(self, index):
            return RNG.normal(size=index)

    data = Data()
    assert finds(data, RNG)
    assert list(generators({"x": data})) == ["x:Data.__getitem__ uses RNG"]


def test_generators_in_a_closure_are_found():
    rng = random.Random(3)
    assert finds(lambda batch: [rng.shuffle(batch)], rng)


def test_generators_in_functions_that_functions_call_are_found():
    def inner():
        return [lambda: OTHER.random() + 1 for _ in range(2)]

    def outer():
        return inner()

    assert finds(outer, OTHER)


def test_nothing_is_found_in_a_function_without_its_variable_yet():
    def collate():
        return later

    assert finds(collate)
    later = 1


def test_generators_in_partial_functions_are_found():
    rng = np.random.default_rng(3)

    def add(noise, batch, other=None):
        return noise, batch, other

    assert finds(functools.partial(add, rng), rng)
    assert finds(functools.partial(add, other=rng), rng)


@pytest.mark.parametrize(
    "generator", [np.random.default_rng(3), np.random.RandomState(3), random.Random(3)]
)
def test_generators_are_found_by_their_bound_methods(generator):
    names = ("normal", "random") if hasattr(generator, "normal") else ("random",)
    for name in names:
        draw = getattr(generator, name)
        assert finds(lambda draw=draw: [draw()], generator)
    assert finds(lambda: [NORMAL()], NORMAL.__self__)


def test_generators_in_default_arguments_are_found():
    rng, other = np.random.default_rng(3), random.Random(3)

    def draw(size, rng=rng, *, other=other):
        return rng.normal(size), other

    assert finds(draw, rng, other)


def test_generators_in_a_class_are_found():
    class Data:
        rng = np.random.default_rng(3)

    assert finds(Data(), Data.rng)
    assert finds(lambda: [Data.rng.normal()], Data.rng)


def test_generators_in_an_attribute_that_a_class_has_a_default_for_are_found():
    class Data:
        __slots__ = ("__dict__", "slot")
        rng = None

        def __init__(self):
            self.rng, self.slot = np.random.default_rng(3), random.Random(3)

    data = Data()
    assert set(map(id, found(x=data))) == {id(data.rng), id(data.slot)}


def test_generators_in_an_attribute_of_an_attribute_are_found():
    class Noise:
        def __init__(self):
            self.generators = {"python": [random.Random(3)]}

    class Data:
        def __init__(self):
            self.noise = Noise()

    data = Data()
    assert finds(data, data.noise.generators["python"][0])


def test_generators_in_what_a_method_overrides_are_found():
    class Base:
        def __getitem__(self, index):
            return RNG.normal(size=index)

    class Data(Base):
        def __getitem__(self, index):
            return super().__getitem__(index)

    assert finds(Data(), RNG)


@pytest.mark.parametrize("wrapper", [staticmethod, property, functools.cached_property])
def test_generators_in_wrapped_methods_are_found(wrapper):
    class Data:
        noise = wrapper(lambda *_: RNG.normal())

    assert finds(Data(), RNG)


def test_generators_in_objects_that_are_containers_are_found():
    class Rows(collections.abc.Sequence):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return RNG.normal(size=index)

    class Listed(list):
        def __getitem__(self, index):
            return super().__getitem__(index) + OTHER.random()

    assert finds(Rows(), RNG)
    assert finds(Listed(range(100)), OTHER)


def test_generators_in_modules_of_modules_are_found(monkeypatch):
    assert finds(lambda: [settings.inner.MINE.normal()], settings.inner.MINE)

    def imports():
        import settings_of_a_test.inner as mine

        return mine.MINE.normal()

    monkeypatch.setitem(sys.modules, "settings_of_a_test.inner", settings.inner)
    assert finds(imports, settings.inner.MINE)


def test_generators_of_equal_names_in_two_modules_are_both_found():
    def both():
        return RNG.normal() + settings.inner.RNG.normal()

    assert finds(both, RNG, settings.inner.RNG)


def test_each_generator_is_found_once_by_the_name_of_the_first_part():
    rng = np.random.default_rng(3)
    parts = {"dataset": [[[lambda: [rng.normal()]]]], "sampler": rng, "bits": [rng]}
    (path,) = generators(parts)
    assert path.startswith("dataset[")
    assert found(x=[rng, rng.bit_generator]) == [rng]


def test_a_long_way_round_hides_nothing_that_is_near():
    class Data:
        def __getitem__(self, index):
            return RNG.normal(size=index)

    data, far = Data(), []
    nested = far
    for _ in range(7):
        nested.append([])
        nested = nested[0]
    nested.append(data)
    assert finds([far, data], RNG)


def test_generators_of_libraries_are_not_found():
    """A checkpoint has these anyway."""

    def draw():
        np.random.seed(random.randrange(9))
        keras.utils.set_random_seed(1)
        return np.random.normal(), random.random()

    assert finds(draw)
    assert finds([np.random.normal, random.random, np.random.get_state.__self__])
    torch = pytest.importorskip("torch")
    assert finds([torch.default_generator, lambda: torch.rand(2)])


def test_generators_without_a_state_are_not_found():
    assert finds([random.SystemRandom()])


def seeds():
    sequence = np.random.SeedSequence([3, 2**70], spawn_key=(4,), pool_size=5)
    sequence.spawn(2)
    return sequence


def torch_generator():
    return pytest.importorskip("torch").Generator().manual_seed(3)


def of_torch(generator):
    import torch

    return [torch.rand(5, generator=generator).tolist(), state(generator)]


def of_numpy(generator):
    odd = generator.integers(0, 9, 3, dtype="uint32")  # half of a word is left over
    child = generator.spawn(1)[0].random()
    return [odd.tolist(), generator.normal(size=5).tolist(), child]


def of_bits(bits):
    return of_numpy(np.random.Generator(bits))


def of_legacy(generator):
    return [generator.normal(), generator.rand(5).tolist()]  # the second normal is kept


def of_python(generator):
    return [generator.gauss(0, 1), generator.random()]


def of_seeds(sequence):
    return [child.generate_state(3).tolist() for child in sequence.spawn(2)]


BITS = [np.random.MT19937, np.random.PCG64, np.random.Philox, np.random.SFC64]
KINDS = [
    *((lambda bits=bits: np.random.Generator(bits(3)), of_numpy) for bits in BITS),
    (lambda: np.random.PCG64DXSM(3), of_bits),
    (np.random.default_rng, of_numpy),  # seeded by chance
    (lambda: np.random.RandomState(3), of_legacy),
    (lambda: np.random.RandomState(np.random.PCG64(3)), of_legacy),
    (lambda: random.Random(3), of_python),
    (seeds, of_seeds),
    (torch_generator, of_torch),
]


@pytest.mark.parametrize(("make", "draw"), KINDS)
def test_states_go_to_a_checkpoint_and_back(make, draw):
    generator = make()
    draw(generator)
    arrays = {}
    kept = json.dumps(encode(state(generator), arrays, "state"))
    kept_state = state(generator)
    expected = [draw(generator) for _ in range(3)]
    assert state(generator) != kept_state
    other = make()
    for each in (generator, other):  # in place, and in a new process
        set_state(each, decode(json.loads(kept), arrays))
        assert state(each) == kept_state
        assert [draw(each) for _ in range(3)] == expected


def test_a_generator_that_is_given_anothers_state_spawns_the_same_children():
    one, other = np.random.default_rng(), np.random.default_rng()
    of_numpy(one)
    set_state(other, state(one))
    assert of_numpy(other) == of_numpy(one)


class Drawing(keras.utils.PyDataset):
    """Draws from a generator in its attributes, or in those of the module."""

    def __init__(self, rng=None):
        super().__init__()
        self.rng = rng

    def __len__(self):
        return 2

    def __getitem__(self, index):
        rng = self.rng or RNG
        return rng.normal(size=(3, 2)), np.zeros(3)


def test_claimed_generators_belong_to_the_data_that_came_first():
    rng, claimed = random.Random(3), {}
    assert unclaimed({"x.rng": rng}, claimed) == {"x.rng": rng}
    assert unclaimed({"x.rng": rng, "y": OTHER}, claimed) == {"y": OTHER}


def adapters(rng):
    """Of training and of validation data."""
    given = SourceContext(get_backend())
    both = given, dataclasses.replace(given, argument="validation_data")
    return [PyDatasetData(Drawing(rng), settings=s) for s in both]


@pytest.mark.parametrize("shared", [np.random.default_rng(3), None])
def test_validation_data_does_not_put_back_what_it_shares(shared):
    """It is made after some training; what it shares with x has gone on since."""
    rng = shared or RNG
    _, validation = adapters(shared)
    list(validation.tracked)
    position = validation.position(0, held=False)
    rng.normal()  # as training does
    expected = state(rng)
    x, validation = adapters(shared)
    validation.resume(position)
    assert state(rng) == expected
    x.resume(x.position(0, held=False))
    assert state(rng) == expected
