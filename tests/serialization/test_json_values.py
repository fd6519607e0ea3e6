"""Values come back from JSON with the same types and the same bits."""

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import math
import pathlib
import random
import struct
import types
import uuid
import zoneinfo

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from resilient import CheckpointMismatchError, CorruptCheckpointError
from resilient.serialization import json_arrays, rng
from resilient.serialization.classes import Known
from resilient.serialization.json_types import BY_TAG
from resilient.serialization.json_values import NotEncodable, decode, encode
from resilient.serialization.state_dict import known_in


class Colour(enum.Enum):
    RED = 1
    ALSO = "x"
    PAIR = (1, 2)


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Marks(enum.Flag):
    NONE = 0
    A = 1
    B = 2


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class SavedState:
    epoch: int
    loss: float
    more: list


class Slotted:
    __slots__ = ("a", "b")


class Plain:
    def __init__(self):
        raise AssertionError("a decoded object is not initialised again")


def through_json(value):
    """Encode, write, read and decode, as a run and the next one do."""
    arrays, known = {}, Known()
    text = json.dumps(encode(value, arrays, "v", known), sort_keys=True)
    assert all(set(name) <= set(NAME) for name in arrays)
    copies = {name: array.copy() for name, array in arrays.items()}
    return decode(json.loads(text), copies, known.close())


pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"


def assert_same(expected, actual):
    assert form(actual) == form(expected)


def form(value):
    """A value in types and bits, with all that is in it; the same ones are equal."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is int:
        return kind, hex(value)
    if kind in (set, frozenset):
        return kind, sorted((form(item) for item in value), key=str)
    if isinstance(value, dict):
        factory = getattr(value, "default_factory", None)
        return kind, factory, [(form(key), form(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return kind, getattr(value, "maxlen", None), [form(item) for item in value]
    if kind is complex:
        return kind, struct.pack("<2d", value.real, value.imag)
    if kind is slice:
        return kind, [form(part) for part in (value.start, value.stop, value.step)]
    if kind in (SavedState, Plain):
        return kind, form(vars(value))
    if kind is np.ndarray and value.dtype.hasobject:
        return kind, value.shape, form(value.tolist())
    if isinstance(value, (np.ndarray, np.generic)):
        fortran = value.flags.f_contiguous
        return kind, value.dtype, value.shape, fortran, value.tobytes()
    if rng.is_generator(value):
        return kind, rng.state(value)
    if isinstance(value, (datetime.datetime, datetime.time)):
        return kind, repr(value), value.fold
    if isinstance(value, (decimal.Decimal, datetime.timezone)):
        return kind, repr(value)
    return kind, value


# Every type of the table, by the tag that its values have.
texts = st.text(st.characters(codec=None, exclude_categories=()))
floats = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(0, 2**52 - 1).map(
        lambda payload: struct.unpack("<d", struct.pack("<Q", 0x7FF << 52 | payload))[0]
    ),
)
zones = st.builds(
    lambda minutes, name: datetime.timezone(
        datetime.timedelta(minutes=minutes), *([] if name is None else [name])
    ),
    st.integers(-1439, 1439),
    st.none() | st.text(max_size=3),
)
seeds = st.integers(0, 2**32 - 1)
dtypes = st.one_of(
    hnp.array_dtypes(),
    hnp.scalar_dtypes(),
    st.sampled_from(
        [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
    ).map(np.dtype),
)


def array_of(dtype, shape, order, seed):
    size = math.prod(shape) * dtype.itemsize
    raw = np.random.RandomState(seed).bytes(size)
    array = np.frombuffer(bytearray(raw), dtype) if raw else np.empty(0, dtype)
    return np.asarray(array.reshape(shape), order=order)


arrays = st.builds(
    array_of, dtypes, hnp.array_shapes(min_side=0), st.sampled_from("CF"), seeds
)
HASHABLE = {
    "int": st.integers() | st.integers(53, 60_000).map(lambda bits: -(1 << bits)),
    "float": floats,
    "str": texts,
    "bytes": st.binary(),
    "complex": st.complex_numbers(),
    "range": st.builds(range, st.integers(), st.integers(), st.integers(1)),
    "Decimal": st.decimals(allow_nan=False),
    "Fraction": st.fractions(),
    "UUID": st.uuids(),
    "PurePosixPath": texts.map(pathlib.PurePosixPath),
    "PureWindowsPath": texts.map(pathlib.PureWindowsPath),
    type(pathlib.Path()).__name__: texts.map(pathlib.Path),
    "timedelta": st.timedeltas(),
    "timezone": zones,
    "date": st.dates(),
    "time": st.times(timezones=st.none() | zones),
    "datetime": st.datetimes(timezones=st.none() | zones),
    "dtype": dtypes,
    "enum": st.sampled_from([*Colour, Bits.A, Bits.A | Bits.B, *Marks, ~Marks.NONE]),
    "import": st.sampled_from([np.less, len, list, json.dumps, SavedState, Colour]),
}
hashable = st.recursive(
    st.one_of(st.none(), st.booleans(), *HASHABLE.values()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple),
        st.frozensets(inner, max_size=4),
        st.builds(Point, inner, inner),
    ),
    max_leaves=8,
)


def containers(inner):
    """By tag; those of any items."""
    few = st.lists(inner, max_size=3)
    named = st.dictionaries(texts, inner, max_size=3)
    return {
        "array of objects": st.lists(inner, min_size=2, max_size=2).map(objects_of),
        "items": st.lists(inner, max_size=5),
        "tuple": few.map(tuple),
        "namedtuple": st.builds(Point, inner, inner),
        "dict": st.dictionaries(hashable, inner, max_size=5),
        "deque": st.builds(collections.deque, few, st.none() | st.just(3)),
        "OrderedDict": named.map(collections.OrderedDict),
        "Counter": named.map(collections.Counter),
        "defaultdict": st.builds(
            collections.defaultdict, st.sampled_from([None, list, Point]), named
        ),
        "slice": st.builds(slice, inner, inner, inner),
        "object": st.builds(SavedState, st.integers(), floats, few),
    }


def objects_of(items):
    built = np.empty((1, 2), object)
    built[0, 0], built[0, 1] = items
    return built


MUTABLE = {
    "array": arrays,
    "scalar": st.builds(
        lambda of, seed: array_of(of, (), "C", seed)[()], dtypes, seeds
    ),
    "list": st.lists(floats, min_size=65, max_size=70)
    | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=65, max_size=70),
    "set": st.sets(hashable, max_size=4),
    "frozenset": st.frozensets(hashable, max_size=4),
    "bytearray": st.binary().map(bytearray),
    "Random": seeds.map(random.Random),
    "RandomState": seeds.map(np.random.RandomState),
    "Generator": seeds.map(np.random.default_rng),
    **{
        cls.__name__: st.builds(cls, seeds)
        for cls in (
            *(np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM),
            *(np.random.Philox, np.random.SFC64),
        )
    },
}
leaves = st.one_of(hashable, *MUTABLE.values())
values = st.recursive(
    leaves, lambda inner: st.one_of(*containers(inner).values()), max_leaves=12
)


@pytest.mark.once
def test_a_strategy_makes_every_type_of_the_table():
    made = {*HASHABLE, *MUTABLE, *containers(leaves)}
    assert {*BY_TAG} - {"objects", "tensor"} <= made


@pytest.mark.once
@pytest.mark.parametrize("tag", [*HASHABLE, *MUTABLE, *containers(leaves)])
def test_any_value_of_a_type_comes_back_in_type_and_bits(tag):
    every = {**HASHABLE, **MUTABLE, **containers(leaves)}

    @settings(max_examples=25, deadline=None)
    @given(every[tag])
    def comes_back(value):
        assert_same(value, through_json(value))

    comes_back()


@pytest.mark.once
@settings(max_examples=150, deadline=None)
@given(values)
def test_any_nested_value_comes_back_in_type_and_bits(value):
    assert_same(value, through_json(value))


@pytest.mark.once
@settings(max_examples=100, deadline=None)
@given(arrays)
def test_any_array_comes_back_in_dtype_shape_order_and_bits(array):
    assert_same(array, through_json(array))


@pytest.mark.parametrize(
    "around",
    [
        lambda value: [value],
        lambda value: (value,),
        lambda value: {"a": value},
        lambda value: {1: [value]},
        lambda value: frozenset([value]),
        lambda value: Point(value, 1),
        lambda value: collections.deque([value]),
        lambda value: SavedState(1, 1.0, value),
        slice,
    ],
)
def test_what_is_not_too_deep_to_be_encoded_is_decoded(around):
    value = 1
    for _ in range(110):
        try:
            assert_same(value, through_json(value))
        except NotEncodable:
            return
        value = around(value)
    raise AssertionError("nothing is too deep")


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u2", ">f4", "c8", "U9", "g"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_larger_arrays_travel_beside_the_json(dtype, order):
    array = np.asarray(np.arange(6000).reshape(60, 100).astype(dtype), order=order)
    arrays = {}
    text = json.dumps(encode([array], arrays, "callbacks.1.best"))
    assert len(text) < 300
    assert list(arrays) == ["callbacks.1.best.0"]
    assert arrays["callbacks.1.best.0"].flags.c_contiguous
    assert arrays["callbacks.1.best.0"].dtype.kind in "biufc"
    assert_same([array], decode(json.loads(text), arrays))


def test_decoded_arrays_share_nothing_with_what_they_were_decoded_from():
    """The same checkpoint is restored twice; training must not reach into it."""
    arrays = {}
    data = encode(np.zeros(1000), arrays, "v")
    decode(data, arrays)[:] = 1
    assert not decode(data, arrays).any()


def test_arrays_with_the_same_name_are_kept_apart():
    arrays = {}
    value = {"a/b": np.zeros(1000), "a_b": np.ones(1000), 3: np.full(1000, 2.0)}
    data = encode(value, arrays, "v")
    assert len(arrays) == 3
    assert_same(value, decode(json.loads(json.dumps(data)), arrays))


def test_bfloat16_arrays_are_kept_as_bfloat16():
    arrays = {}
    array = np.arange(1000).astype(ml_dtypes.bfloat16)
    assert_same(array, decode(encode(array, arrays, "v"), arrays))
    assert arrays["v"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        -float("nan"),
        -0.0,
        float("inf"),
        5e-324,
        10**5000,
        -(2**63),
        2**53 + 1,
        "\ud800",
        "\ud83d\ude00",
        {"!": "int", "v": "0x1"},
        {1: 2, "1": 3, None: 4},
        [float(i) / 7 for i in range(500)],
        list(range(-100, 100)),
        [2**80, *range(100)],
        [1, True, 0.0] * 50,
        bytearray(b"abc"),
        slice(1, None, 2),
        range(3, 90, 4),
        pathlib.Path("/a/b"),
        pathlib.PureWindowsPath("c:/x"),
        datetime.datetime(2026, 11, 1, 1, 30, fold=1),
        datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC),
        {10**5000: 1, (10**5000,): 2},
        {"a": {frozenset([1 << 65_536]): np.zeros(1000)}},
        np.zeros(1 << 21, "V0"),
        set(range(100)),
        datetime.timezone(datetime.timedelta(hours=2), "here"),
        decimal.Decimal("1.10"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=7),
        collections.Counter("hello"),
        np.float32(1) / 3,
        np.bool_(True),
        np.datetime64("NaT"),
        np.str_("x" * 3000),
        np.zeros(2, [("a", "f4"), ("b", "i8", (2,))])[0],
        np.dtype("f4"),
        np.dtype(ml_dtypes.bfloat16),
        np.array([{"a": 1}, None, 2.5], dtype=object),
        np.zeros((0, 3)),
        np.array(3.5),
        np.less,
        collections.deque([1], maxlen=None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_awkward_values_come_back(value):
    assert_same(value, through_json(value))


def test_a_decimal_nan_keeps_its_kind():
    assert str(through_json(decimal.Decimal("-sNaN12"))) == "-sNaN12"


def test_a_defaultdict_keeps_its_factory():
    value = collections.defaultdict(list, {"a": [1]})
    back = through_json(value)
    assert type(back) is collections.defaultdict
    assert back == value
    assert back.default_factory is list


@pytest.mark.parametrize(
    "make",
    [
        lambda: random.Random(3),
        lambda: np.random.RandomState(3),
        lambda: np.random.default_rng(3),
        lambda: np.random.Generator(np.random.Philox(3)),
        lambda: np.random.Generator(np.random.MT19937(3)),
        lambda: np.random.Generator(np.random.SFC64(3)),
    ],
)
def test_random_generators_continue_where_they_were(make):
    def draw(generator):
        if isinstance(generator, random.Random):
            return [generator.gauss(0, 1) for _ in range(5)]
        return generator.normal(size=5).tolist()

    generator = make()
    draw(generator)
    copy = through_json(generator)
    assert type(copy) is type(generator)
    assert draw(copy) == draw(generator)


def test_a_generator_spawns_the_same_children():
    generator = np.random.default_rng(3)
    generator.spawn(2)
    copy = through_json(generator)
    assert copy.spawn(1)[0].random() == generator.spawn(1)[0].random()


def test_plain_objects_of_the_user_are_rebuilt_without_their_init():
    value = object.__new__(Plain)
    value.losses = [1.0, 2.0]
    value.inner = SavedState(1, 2.0, [3])
    back = through_json(value)
    assert type(back) is Plain
    assert back.losses == [1.0, 2.0]
    assert back.inner == SavedState(1, 2.0, [3])


def test_slots_are_attributes_too():
    value = Slotted()
    value.b = 3
    back = through_json(value)
    assert back.b == 3
    assert not hasattr(back, "a")


class _List(list):
    pass


@pytest.mark.parametrize(
    "value",
    [
        lambda: None,
        object(),
        _List(),
        types.SimpleNamespace(a=1),
        (i for i in range(3)),
        json,
        np.ma.array([1]),
        np.array([object()]),
        np.zeros(2, [("a", "O")]),
        datetime.datetime(2026, 5, 1, tzinfo=zoneinfo.ZoneInfo("UTC")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_exact_is_refused_by_name(value):
    with pytest.raises(NotEncodable) as caught:
        encode({"a": [1, value]}, {}, "Mine.state")
    assert caught.value.path.startswith("Mine.state['a'][1]")


def test_open_files_are_refused():
    with open(__file__) as file, pytest.raises(NotEncodable):
        encode(file, {}, "v")


def test_values_that_contain_themselves_are_refused():
    value = []
    value.append(value)
    with pytest.raises(NotEncodable, match="contains itself"):
        encode(value, {}, "v")


def test_very_deep_values_are_refused_rather_than_overflow():
    value = []
    for _ in range(1000):
        value = [value]
    with pytest.raises(NotEncodable, match="deep"):
        encode(value, {}, "v")


def test_a_missing_array_is_an_error():
    data = encode(np.zeros(1000), {}, "v")
    with pytest.raises(CorruptCheckpointError, match="'v' is missing"):
        decode(data, {})


def test_what_the_place_did_not_hold_cannot_be_encoded():
    known = Known()
    encode([Colour.RED, len], {}, "v", known)
    known.close()
    encode([Colour.ALSO, len, int], {}, "v", known)  # int is built in
    for value in (Bits.A, print, Point(1, 2), SavedState(1, 2.0, [])):
        with pytest.raises(NotEncodable, match="was not there when training began"):
            encode([value], {}, "v", known)
        with pytest.raises(NotEncodable):
            encode([value], {}, "v")


def test_what_a_state_refers_to_is_known_without_a_look_at_its_arrays(monkeypatch):
    def read(*_):
        raise AssertionError("an array was read")

    state = {"a": np.ones(1000), "b": [1.0] * 1000, "c": np.float32(1), "d": Colour.RED}
    with monkeypatch.context() as patch:
        patch.setattr(json_arrays, "encode_array", read)
        known = known_in(lambda: state)
    assert decode(encode(state, arrays := {}, "v", known), arrays, known)["d"] is (
        Colour.RED
    )
    with pytest.raises(NotEncodable, match="was not there when training began"):
        encode(Bits.A, {}, "v", known)


def test_what_is_registered_with_keras_is_known_everywhere():
    import keras

    keras.saving.get_custom_objects()["any name"] = Slotted
    try:
        value = Slotted()
        value.a = 3
        data = encode([value, Slotted], {}, "v")
        assert decode(data, {})[0].a == 3
    finally:
        del keras.saving.get_custom_objects()["any name"]
    with pytest.raises(CheckpointMismatchError, match="Slotted"):
        decode(data, {})


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")  # Keras's own
def test_tensors_of_the_backend_come_back_as_tensors():
    keras = pytest.importorskip("keras")
    for dtype in ("float32", "int32", "bfloat16", "bool"):
        tensor = keras.ops.convert_to_tensor([0, 1, 2], dtype=dtype)
        back = through_json(tensor)
        assert type(back) is type(tensor)
        assert keras.backend.standardize_dtype(back.dtype) == dtype
        assert_same(
            np.asarray(keras.ops.convert_to_numpy(tensor)),
            np.asarray(keras.ops.convert_to_numpy(back)),
        )
