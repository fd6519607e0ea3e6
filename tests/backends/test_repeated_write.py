"""Later saves of a layout, whose files are written without the format's library."""

import os
from pathlib import Path

import numpy as np
import pytest
from support.tensor_cases import any_bytes, differing, every_dtype_and_shape
from test_formats import TOOLS, Arrays

from resilient.backends import Backend
from resilient.backends.repeated_write import RepeatedWrite

pytestmark = pytest.mark.spread(over=["jax", "torch"])


def names(directory: Path) -> list[str]:
    return sorted(os.fspath(p.relative_to(directory)) for p in directory.rglob("*"))


def like(arrays: Arrays, seed: int) -> Arrays:
    return {k: any_bytes(str(x.dtype), x.shape, seed) for k, x in arrays.items()}


@pytest.mark.everywhere
def test_the_formats_own_tool_reads_each_of_many_saves(
    adapter: Backend, tmp_path: Path
) -> None:
    for seed in range(4):
        arrays = like(every_dtype_and_shape(), seed)
        directory = tmp_path / str(seed)
        directory.mkdir()
        adapter.snapshot(arrays).write(str(directory))
        assert differing(adapter.read(str(directory)), arrays) == []
        for tool in TOOLS[adapter.name]:
            assert differing(tool(directory, arrays), arrays) == []


@pytest.mark.everywhere
def test_layouts_take_turns(adapter: Backend, tmp_path: Path) -> None:
    """A tensor more, another order, shape or dtype: nothing of the other is left."""
    one = {"a": any_bytes("float32", (3, 4)), "b": any_bytes("int32", (12,))}
    layouts = [
        one,
        {**one, "c": any_bytes("bool", (5,))},
        {"b": one["b"], "a": one["a"]},
        {"a": any_bytes("float32", (4, 3)), "b": one["b"]},
        {"a": any_bytes("int32", (3, 4)), "b": one["b"]},
        {},
    ]
    for number in range(4 * len(layouts)):
        arrays = like(layouts[number % len(layouts)], number)
        directory = tmp_path / str(number)
        directory.mkdir()
        adapter.snapshot(arrays).write(str(directory))
        assert differing(adapter.read(str(directory)), arrays) == []


def library(directory: Path, arrays: Arrays) -> None:
    """Writes ``a``, a constant, ``b``; and a file that is constant."""
    (directory / "in").mkdir()
    content = b"<" + arrays["a"].tobytes() + b"-" + arrays["b"].tobytes()
    (directory / "in" / "tensors").write_bytes(content)
    (directory / "names").write_text("a b")


def find(_: str) -> dict[str, dict[str, slice]]:
    return {"in/tensors": {"b": slice(10, 14), "a": slice(1, 9)}}


def written(repeated: RepeatedWrite, directory: Path, seed: int) -> tuple[bool, Arrays]:
    """Whether the library wrote it, and what."""
    arrays = {
        "a": any_bytes("float32", (2,), seed),
        "b": any_bytes("uint8", (4,), seed),
    }
    asked = []

    def write() -> None:
        asked.append(True)
        library(directory, arrays)

    directory.mkdir()
    repeated.write("layout", arrays, str(directory), write)
    return bool(asked), arrays


def test_the_third_write_is_a_repetition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little of it the system takes at once."""
    some = os.writev
    monkeypatch.setattr(
        os, "writev", lambda file, all_: some(file, [b"".join(all_)[:3]])
    )
    repeated = RepeatedWrite(find)
    by_library = []
    for number in range(4):
        asked, arrays = written(repeated, tmp_path / str(number), number)
        by_library.append(asked)
        expected = tmp_path / f"expected-{number}"
        expected.mkdir()
        library(expected, arrays)
        assert names(tmp_path / str(number)) == names(expected)
        for name in ("in/tensors", "names"):
            content = (tmp_path / str(number) / name).read_bytes()
            assert content == (expected / name).read_bytes()
    assert by_library == [True, True, False, False]


@pytest.mark.parametrize(
    "places",
    [
        {},
        {"a": slice(1, 9)},
        {"a": slice(1, 9), "b": slice(10, 13)},
        {"a": slice(1, 9), "b": slice(1, 5)},
    ],
)
def test_what_has_no_place_of_its_own_is_written_by_the_library(
    tmp_path: Path, places: dict[str, slice]
) -> None:
    repeated = RepeatedWrite(lambda _: {"in/tensors": places})
    asked = [written(repeated, tmp_path / str(n), n)[0] for n in range(4)]
    assert asked == [True] * 4


def test_a_tensor_in_another_order_of_memory(tmp_path: Path) -> None:
    """Its bytes are those of the order that the file says it has."""
    repeated = RepeatedWrite(find)
    for number in range(3):
        written(repeated, tmp_path / str(number), number)
    a = np.asfortranarray(any_bytes("uint8", (2, 4)))
    arrays = {"a": a, "b": any_bytes("uint8", (4,))}
    (tmp_path / "last").mkdir()
    repeated.write("layout", arrays, str(tmp_path / "last"), lambda: None)
    content = (tmp_path / "last" / "in" / "tensors").read_bytes()
    assert content[1:9] == a.tobytes(order="C")
