"""Everything a run left behind, flat, exact and comparable.

A record maps a readable path such as ``variables.optimizer[3]`` to an array or to the
text of a plain value. It is written without pickle, and two records are equal only if
every byte, dtype and Python type is.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the names bfloat16 and float8)
import numpy as np

Record = dict[str, np.ndarray | str]


def flatten(value: Any, path: str) -> Iterator[tuple[str, np.ndarray | str]]:
    """Leaves of nested plain values, with the types and lengths of containers.

    Objects that are not plain values are recorded by the name of their class: a
    callback's model or open file has no bytes to compare.
    """
    if isinstance(value, np.ndarray | np.generic):
        yield path, np.asarray(value)
    elif isinstance(value, Mapping):
        yield path, f"{type(value).__name__} with keys {list(value)!r}"
        for key in value:
            yield from flatten(value[key], f"{path}.{key}")
    elif isinstance(value, list | tuple):
        yield path, f"{type(value).__name__} of {len(value)}"
        for index, item in enumerate(value):
            yield from flatten(item, f"{path}[{index}]")
    elif isinstance(value, bool | int | float | complex | str | bytes | None):
        yield path, f"{type(value).__name__} {value!r}"
    elif isinstance(value, set | frozenset):
        yield path, f"{type(value).__name__} {sorted(map(repr, value))}"
    else:
        yield path, f"an object of {type(value).__name__}"


def save(record: Record, file: Path) -> None:
    """Write a record; the file appears only when it is whole."""
    index: dict[str, Any] = {}
    chunks: list[bytes] = []
    for path, leaf in record.items():
        if isinstance(leaf, str):
            index[path] = leaf
        else:
            index[path] = [leaf.dtype.name, list(leaf.shape), leaf.nbytes]
            chunks.append(leaf.tobytes())
    head = json.dumps(index).encode()
    partial = file.with_suffix(".partial")
    partial.write_bytes(len(head).to_bytes(8, "big") + head + b"".join(chunks))
    partial.replace(file)


def load(file: Path) -> Record:
    """Read what ``save`` wrote."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "big")
    record: Record = {}
    for path, leaf in json.loads(data[8:start]).items():
        if isinstance(leaf, str):
            record[path] = leaf
            continue
        name, shape, nbytes = leaf
        dtype = np.dtype(name)
        record[path] = np.frombuffer(data[start : start + nbytes], dtype).reshape(shape)
        start += nbytes
    return record


def differences(expected: Record, actual: Record, limit: int = 30) -> list[str]:
    """What differs, a line each; empty if and only if all bytes are equal."""
    lines: list[str] = []
    for path in expected.keys() | actual.keys():
        if path not in actual:
            lines.append(f"{path}: missing (expected {_show(expected[path])})")
        elif path not in expected:
            lines.append(f"{path}: unexpected {_show(actual[path])}")
        elif line := _difference(expected[path], actual[path]):
            lines.append(f"{path}: {line}")
    lines.sort()
    if len(lines) <= limit:
        return lines
    rest = Counter(line.split("[")[0].split(":")[0] for line in lines[limit:])
    return [*lines[:limit], f"... and {len(lines) - limit} more: {dict(rest)}"]


def _difference(expected: np.ndarray | str, actual: np.ndarray | str) -> str:
    if isinstance(expected, str) or isinstance(actual, str):
        same = (
            isinstance(expected, str) and isinstance(actual, str) and expected == actual
        )
        return "" if same else f"expected {_show(expected)}, got {_show(actual)}"
    if (expected.dtype, expected.shape) != (actual.dtype, actual.shape):
        return f"expected {_show(expected)}, got {_show(actual)}"
    if expected.tobytes() == actual.tobytes():
        return ""
    one, two = _bytes(expected), _bytes(actual)
    count = int((one != two).any(-1).sum())
    line = f"{count} of {expected.size} elements differ"
    if expected.dtype.kind == "f":
        gap = np.abs(expected.astype("f8") - actual.astype("f8"))
        line += f", by up to {np.nanmax(gap):.3g}"
    return line if expected.size > 4 else f"{line} ({expected} and {actual})"


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), "u1").reshape(max(array.size, 1), -1)


def _show(leaf: np.ndarray | str) -> str:
    if isinstance(leaf, str):
        return leaf if len(leaf) < 300 else leaf[:300] + "..."
    return f"{leaf.dtype.name}{list(leaf.shape)}"
