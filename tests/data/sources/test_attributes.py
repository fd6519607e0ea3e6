"""What changed on the user's datasets: kept, put back, or named; at a bounded cost."""

import array
import collections
import io
import itertools
import multiprocessing
import queue
import random
import threading
import weakref
from types import SimpleNamespace
from typing import ClassVar

import keras
import numpy as np
import pytest

from resilient.errors import NotExactWarning
from resilient.objects import kinds, leaves
from resilient.objects.attributes import Attributes
from resilient.serialization.batches import checksum
from resilient.serialization.json_values import decode, encode

pytestmark = [pytest.mark.sources, pytest.mark.waits]

BIG = kinds.WHOLE_BYTES // 8 + 1  # elements of the smallest large array


class Inner:
    """A plain object that a dataset refers to."""

    def __init__(self):
        self.count = 0
        self.rng = np.random.default_rng(3)


class Data(keras.utils.PyDataset):
    """Attributes of every kind."""

    shared: ClassVar[list[int]] = []

    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(attributes)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.zeros((2, 3)), np.zeros((2, 1))


class Module:
    """A transform with a way to give its state."""

    def __init__(self):
        self.seen = 0

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def through_json(value):
    """What a checkpoint does to a captured value."""
    arrays = {}
    data = encode(value, arrays, "data")
    return decode(data, {name: array.copy() for name, array in arrays.items()})


def moved(make, change):
    """The second process's object, restored to what ``change`` made of the first."""
    first, second = make(), make()
    attributes = Attributes({"x": first})
    change(first)
    captured = through_json(attributes.capture())
    assert attributes.uncaptured() == []
    Attributes({"x": second}).restore(captured)
    return first, second, captured


def test_only_what_changed_is_kept():
    first, second, captured = moved(
        lambda: Data(a=1, b=[1, 2], c=np.arange(3)), lambda d: d.b.append(3)
    )
    assert list(captured["objects"]) == ["x.b"]
    assert second.b == first.b == [1, 2, 3]


def test_nothing_changed():
    data = Data(a=1, b=[1], c=np.arange(BIG), d=Inner(), e=threading.Lock())
    assert Attributes({"x": data}).capture() == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda: random.Random(1),
        lambda: np.random.default_rng(1),
        lambda: np.random.RandomState(1),
    ],
)
def test_random_generators_go_on(make):
    """In place: someone else may draw from the same one."""

    def draw(generator):
        return [generator.random() for _ in range(3)]

    first, second = Data(rng=make()), Data(rng=make())
    other = second.rng
    attributes = Attributes({"x": first})
    draw(first.rng)
    captured = through_json(attributes.capture())
    later = Attributes({"x": second})
    later.restore(captured)
    assert other is second.rng
    expected = draw(first.rng)
    assert draw(second.rng) == expected
    later.restore(captured)  # twice, after more was drawn
    assert draw(second.rng) == expected


def test_nested_objects_lists_and_new_attributes():
    def change(data):
        data.inner.count = 5
        data.inner.rng.random()
        data.many[1].count = 7
        data.new = {"best": np.float32(0.5)}
        del data.gone

    first, second, _ = moved(
        lambda: Data(inner=Inner(), many=[Inner(), Inner(), threading.Lock()], gone=1),
        change,
    )
    assert second.inner.count == 5
    assert second.inner.rng.random() == first.inner.rng.random()
    assert [item.count for item in second.many[:2]] == [0, 7]
    assert second.new == first.new
    assert not hasattr(second, "gone")


def test_an_object_made_later_is_named_unless_its_class_is_known():
    def change(data):
        data.made = Inner()
        data.made.count = 9

    first = Data(made=None)
    attributes = Attributes({"x": first})
    change(first)
    assert "objects" not in attributes.capture()
    assert attributes.uncaptured() == [f"Data.made ({Inner.__module__}.Inner)"]
    keras.saving.get_custom_objects()["Inner"] = Inner
    try:
        _, second, _ = moved(lambda: Data(made=None), change)
    finally:
        del keras.saving.get_custom_objects()["Inner"]
    assert type(second.made) is Inner
    assert second.made.count == 9


def test_what_only_this_process_changed_is_undone():
    make = lambda: Data(a=1, order=[3, 1, 2], inner=Inner())  # noqa: E731
    first, second = make(), make()
    captured = through_json(Attributes({"x": first}).capture())
    attributes = Attributes({"x": second})
    second.a, second.new, second.inner.count = 2, 3, 4
    second.order.sort()
    attributes.restore(captured)
    assert (second.a, second.order, second.inner.count) == (1, [3, 1, 2], 0)
    assert not hasattr(second, "new")


def test_class_attributes_that_change_in_place():
    class Own(Data):
        shared: ClassVar[list[int]] = []

    data = Own()
    attributes = Attributes({"x": data})
    Own.shared.append(4)
    captured = through_json(attributes.capture())
    Own.shared.clear()
    attributes.restore(captured)
    assert Own.shared == [4]


def test_state_dict_is_used_where_there_is_one():
    def change(data):
        data.transform.seen = 3

    _, second, captured = moved(lambda: Data(transform=Module()), change)
    assert captured["objects"]["x.transform"]["content"][0] == "state_dict"
    assert second.transform.seen == 3

    first, other = Module(), Module()
    attributes = Attributes({"x": first})
    first.seen = 8
    captured = through_json(attributes.capture())
    Attributes({"x": other}).restore(captured)
    assert other.seen == 8


def test_state_dict_that_cannot_be_kept_is_named():
    class Odd(Module):
        def state_dict(self):
            return {"lock": threading.Lock()}

    attributes = Attributes({"x": Data(v=Odd())})
    attributes.capture()
    assert [name.split()[0] for name in attributes.uncaptured()] == ["Data.v"]


def test_keras_augmentation_keeps_its_seed():
    """Layers in a dataset draw from their own seed generators."""

    def make():
        return Data(noise=keras.layers.GaussianNoise(0.5, seed=1))

    x = np.zeros((2, 4), "float32")
    first, second, _ = moved(make, lambda d: d.noise(x, training=True))
    expected, actual = (d.noise(x, training=True) for d in (first, second))
    assert checksum(expected) == checksum(actual)


def test_tensors_of_every_library():
    torch = pytest.importorskip("torch")

    def make():
        return Data(
            order=torch.arange(5),
            generator=torch.Generator().manual_seed(2),
            several=[torch.zeros(2), torch.zeros(3)],
            own=keras.ops.arange(3),
        )

    def change(data):
        torch.randperm(5, generator=data.generator, out=data.order)
        data.several[1] += 1
        data.own = data.own + 1

    first, second, _ = moved(make, change)
    assert second.order.tolist() == first.order.tolist()
    assert second.several[1].tolist() == [1, 1, 1]
    assert checksum(second.own) == checksum(first.own)
    assert (
        torch.rand(1, generator=second.generator).item()
        == torch.rand(1, generator=first.generator).item()
    )


def test_torch_datasets_and_samplers_are_looked_into():
    torch = pytest.importorskip("torch")

    class Own(torch.utils.data.Dataset):
        def __init__(self):
            self.order = np.arange(4)

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return self.order[index]

    def make():
        return torch.utils.data.Subset(Own(), [0, 1])

    _, second, captured = moved(make, lambda d: d.dataset.order.__setitem__(0, 9))
    assert list(captured["objects"]) == ["x.dataset.order"]
    assert second.dataset.order.tolist() == [9, 1, 2, 3]


def test_configuration_is_neither_kept_nor_named(tmp_path):
    """Handles that are opened when first needed, too."""
    memory_map = np.memmap(tmp_path / "map", np.float32, "w+", shape=(4,))
    h5py = pytest.importorskip("h5py")
    pandas = pytest.importorskip("pandas")
    file = h5py.File(tmp_path / "file.h5", "w")
    file["data"] = np.arange(3)

    file_of_text = (tmp_path / "text").open("w")
    data = Data(
        file=None,
        opened=file_of_text,
        lock=threading.Lock(),
        transform=lambda x: x,
        sparse=memory_map,
        table=pandas.DataFrame({"a": [1, 2]}),
        stored=file["data"],
        own=weakref.ref(file),
    )
    attributes = Attributes({"x": data})
    data.file = file
    assert attributes.capture() == {}
    assert attributes.uncaptured() == []
    captured = through_json(attributes.capture())
    attributes.restore(captured)
    assert data.file is file
    file.close()
    data.opened.close()


def test_what_cannot_be_kept_is_named():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": range(5)})
    data = Data(table=table, cache={}, numbers=itertools.count())
    attributes = Attributes({"x": data})
    data.table = table.sample(frac=1, random_state=1)
    data.cache = {i: (np.zeros(2), np.zeros(1)) for i in range(kinds.LEAVES)}
    captured = through_json(attributes.capture())
    assert {name.split()[0] for name in attributes.uncaptured()} == {
        *("Data.table", "Data.cache", "Data.numbers")
    }
    other = Data(table=table, cache={}, numbers=itertools.count())
    with pytest.warns(NotExactWarning, match=r"Data\.cache"):
        Attributes({"x": other}).restore(captured)


def test_small_caches_are_kept():
    def change(data):
        data.cache[3] = (np.ones(2), np.zeros(1))

    _, second, _ = moved(lambda: Data(cache={}), change)
    np.testing.assert_array_equal(second.cache[3][0], np.ones(2))


def test_large_arrays_are_never_read_whole_unless_they_changed(monkeypatch):
    """The cost is told in bytes, not in seconds."""
    read = []
    plain = leaves.as_bytes
    monkeypatch.setattr(
        leaves, "as_bytes", lambda array: read.append(array.nbytes) or plain(array)
    )
    data = Data(x=np.zeros(4 * BIG), parts=[np.zeros(BIG), np.zeros(BIG)], y=[0.5] * 99)
    attributes = Attributes({"x": data})
    for _ in range(3):
        assert attributes.capture() == {}
    assert sum(read) < 4 * 4 * 8 * leaves.SAMPLED


def test_large_array_shuffled_in_place_is_kept():
    def change(data):
        np.random.RandomState(1).shuffle(data.order)

    first, second, _ = moved(lambda: Data(order=np.arange(BIG)), change)
    np.testing.assert_array_equal(first.order, second.order)


def test_larger_array_shuffled_in_place_is_named(monkeypatch):
    monkeypatch.setattr(leaves, "KEPT_BYTES", 2**20)
    data = Data(order=np.arange(BIG))
    attributes = Attributes({"x": data})
    np.random.RandomState(1).shuffle(data.order)
    assert attributes.capture() == {"lost": ["Data.order (numpy.ndarray)"]}


def test_long_list_that_was_shuffled_is_kept_as_its_order():
    names = [f"image-{i}.png" for i in range(2 * kinds.LEAVES)]

    def change(data):
        random.Random(1).shuffle(data.names)

    first, second, captured = moved(lambda: Data(names=list(names)), change)
    assert captured["objects"]["x.names"]["content"][0] == "long"
    assert second.names == first.names


def test_containers_that_json_does_not_know():
    def change(data):
        data.queue.append(3)
        data.counts["a"] += 1

    _, second, _ = moved(
        lambda: Data(queue=collections.deque([1, 2], 2), counts=collections.Counter()),
        change,
    )
    assert second.queue == collections.deque([2, 3], 2)
    assert second.counts == {"a": 1}


def test_aliases_come_and_go():
    """Two attributes that are one object, and one that takes another's."""

    def change(data):
        data.a = data.b
        data.b.append(5)

    _, second, _ = moved(lambda: Data(a=[1], b=[2]), change)
    assert second.a == [2, 5]
    assert second.a is second.b


def test_new_objects_that_are_shared_stay_shared():
    """Two attributes that draw from one new generator."""

    def change(data):
        data.rng = data.inner.rng = np.random.default_rng(7)

    first, second, _ = moved(lambda: Data(rng=None, inner=Inner()), change)
    assert second.rng is second.inner.rng
    assert second.rng.random() == first.rng.random()


class Lines(dict):
    """A dict of the user's."""


def local():
    class Local:
        count = 0

    return Local()


def masked():
    return np.ma.array([0, 1], mask=[0, 1])


def record():
    return np.zeros(2, [("a", "i4"), ("b", "f4")]).view(np.recarray)


def add(value):
    value[0] += 1


@pytest.mark.parametrize(
    ("make", "change", "look"),
    [
        (
            lambda: SimpleNamespace(i=0, rng=np.random.default_rng(0)),
            lambda v: setattr(v, "i", int(v.rng.integers(5, 9))),
            lambda v: (v.i, v.rng.random()),
        ),
        (lambda: collections.defaultdict(lambda: 0), add, dict),
        (lambda: Lines({0: 1}), add, dict),
        (lambda: collections.UserDict({0: 1}), add, dict),
        (lambda: array.array("i", [0, 4]), add, list),
        (
            lambda: multiprocessing.Value("i", 0),
            lambda v: setattr(v, "value", 4),
            lambda v: v.value,
        ),
        (lambda: io.BytesIO(b"abc"), lambda v: v.read(1), lambda v: v.read()),
        (lambda: io.StringIO("abc"), lambda v: v.write("x"), lambda v: v.getvalue()),
        (masked, add, lambda v: (v.data.tolist(), v.mask.tolist())),
        (record, lambda v: add(v.a), lambda v: v.tolist()),
        (
            lambda: [local()],
            lambda v: setattr(v[0], "count", 3),
            lambda v: v[0].count,
        ),
        (threading.local, lambda v: setattr(v, "i", 3), lambda v: v.i),
    ],
)
def test_unusual_values_are_kept(make, change, look):
    first, second, captured = moved(lambda: Data(v=make()), lambda d: change(d.v))
    assert captured["objects"]
    assert look(second.v) == look(first.v)


def test_files_go_on_where_they_were(tmp_path):
    (tmp_path / "lines").write_text("one\ntwo\nthree\n")

    def make():
        return Data(file=(tmp_path / "lines").open())

    first, second, _ = moved(make, lambda d: d.file.readline())
    assert first.file.readline() == second.file.readline() == "two\n"
    for data in (first, second):
        data.file.close()
    other = make()
    attributes = Attributes({"x": other})
    next(other.file)  # Python does not tell where that leads
    attributes.capture()
    assert attributes.uncaptured() == ["Data.file (_io.TextIOWrapper)"]
    other.file.close()
    assert Attributes({"x": other}).capture() == {}


def test_typed_keys_of_jax_are_kept():
    jax = pytest.importorskip("jax")

    def change(data):
        data.key, _ = jax.random.split(data.key)

    first, second, _ = moved(lambda: Data(key=jax.random.key(0)), change)
    assert (jax.random.bits(first.key) == jax.random.bits(second.key)).item()


def test_counters_on_classes_are_kept():
    class Own(Data):
        count = 0

    data = Own()
    attributes = Attributes({"x": data})
    Own.count, Own.more = 2, 1
    captured = through_json(attributes.capture())
    Own.count = 0
    del Own.more
    attributes.restore(captured)
    assert (Own.count, Own.more) == (2, 1)
    assert "count" not in vars(data)


def closure():
    numbers = [0]
    return lambda: add(numbers)


def waiting():
    made = queue.Queue()
    made.put(0)
    return made


def transform():
    torch = pytest.importorskip("torch")

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.BatchNorm1d(2)
            self.calls = 0

    return Counting()


@pytest.mark.parametrize(
    ("make", "change", "look"),
    [
        (closure, lambda v: v(), lambda v: v.__closure__[0].cell_contents),
        (waiting, lambda v: v.put(v.get() + 1), lambda v: list(v.queue)),
        (transform, lambda v: setattr(v, "calls", 1), lambda v: v.calls),
        (
            transform,
            lambda v: v.inner.running_mean.add_(1),
            lambda v: v.inner.running_mean.tolist(),
        ),
    ],
)
def test_what_functions_queues_and_modules_hold_is_kept(make, change, look):
    first, second, captured = moved(lambda: Data(v=make()), lambda d: change(d.v))
    assert captured["objects"]
    assert look(second.v) == look(first.v)


def test_another_function_in_place_of_one_is_named():
    data = Data(f=lambda: 1)
    attributes = Attributes({"x": data})
    data.f = lambda: 2
    attributes.capture()
    assert len(attributes.uncaptured()) == 1


def test_objects_that_refer_to_the_data_are_no_changes():
    """Their own parts have their own turn."""
    data = Data(count=0, rng=np.random.default_rng(0))
    data.v = closure_over(data)
    attributes = Attributes({"x": data})
    data.count = 1
    data.rng.random()
    assert attributes.changed() == ["x.count", "x.rng"]
    assert attributes.uncaptured() == []


def closure_over(data):
    return lambda: data.count + data.rng.random()


def test_looking_changes_nothing():
    class Odd:
        closed = False

        def __getstate__(self):
            Odd.closed = True
            return {}

    data = Data(v={"a": {Odd()}}, f=threading.Lock())
    Attributes({"x": data}).capture()
    assert not Odd.closed
