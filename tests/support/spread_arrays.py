"""Saves and loads arrays in every layout, in one process of some.

    python spread_arrays.py {save|load} DIRECTORY

Prints a line of JSON for each layout. The processes take turns, so that one that waits
for another, in a collective say, would wait for ever.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from resilient import backends
from resilient.backends import get_backend
from resilient.backends.base import Part
from resilient.backends.jax_files import Shards
from resilient.backends.stored import StoredTensor
from support.tensor_cases import any_bytes

# Name -> dtype, shape, axes of the mesh over which a LayoutMap spreads it.
CASES: dict[str, tuple[str, tuple[int, ...], tuple[str | None, ...]]] = {
    "columns": ("float32", (6, 8), (None, "model")),
    "rows": ("float32", (8, 6), ("model", None)),
    "both": ("float32", (4, 8), ("batch", "model")),
    "large": ("float32", (512, 1024), (None, "model")),
    "middle": ("float16", (3, 8, 5), (None, "model", None)),
    "brain": ("bfloat16", (8, 4), ("model", None)),
    "eight": ("float8_e4m3fn", (8,), ("model",)),
    "seed": ("uint32", (2,), (None,)),
    "flags": ("bool", (8,), ("model",)),
    "scalar": ("float32", (), ()),
    "nothing": ("float32", (0, 8), (None, "model")),
    "whole": ("float32", (300, 400), (None, None)),
    "zeros": ("float32", (8,), ("model",)),
    "negative": ("float32", (8,), ("model",)),
}


def values() -> dict[str, np.ndarray]:
    arrays = {
        name: any_bytes(dtype, shape, seed)
        for seed, (name, (dtype, shape, _)) in enumerate(CASES.items())
    }
    arrays["zeros"] = np.zeros(8, "float32")
    arrays["negative"] = -arrays["zeros"]
    return arrays


def layouts() -> dict[str, Callable[[], Any]]:
    """Name -> what makes a Keras distribution, over all devices or some of them."""
    devices = keras.distribution.list_devices()

    def model_parallel(*shape: int) -> Any:
        mesh = keras.distribution.DeviceMesh(
            shape, ["batch", "model"], devices[: shape[0] * shape[1]]
        )
        layout_map = keras.distribution.LayoutMap(mesh)
        for name, (_, _, axes) in CASES.items():
            layout_map[f".*{name}"] = axes
        return keras.distribution.ModelParallel(
            layout_map=layout_map, batch_dim_name="batch", auto_shard_dataset=False
        )

    count = len(devices)
    found = {
        "model": lambda: model_parallel(1, count),
        "batch-model": lambda: model_parallel(2, count // 2),
        "data": lambda: keras.distribution.DataParallel(
            devices=devices, auto_shard_dataset=False
        ),
    }
    if jax.process_count() == 1:
        found |= {"two-of-four": lambda: model_parallel(1, 2), "one": lambda: None}
    return found


def variables(layout: Any) -> dict[str, keras.Variable]:
    """Of zeros, spread as the layout says."""
    keras.distribution.set_distribution(layout)
    return {
        name: keras.Variable(np.zeros(shape), dtype=dtype, name=name, trainable=False)
        for name, (dtype, shape, _) in CASES.items()
    }


def fill(variable: keras.Variable, value: np.ndarray) -> None:
    """Without anything of ours."""
    sharding = variable.value.sharding
    variable.assign(
        jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
    )


def donate(tensors: dict[str, keras.Variable]) -> bool:
    """Let training steps take over the memory of all; whether they changed them."""
    for variable in tensors.values():
        value = variable.value
        step = jax.jit(
            lambda x: ~x if x.dtype == bool else x + 1,
            donate_argnums=0,
            out_shardings=value.sharding,
        )
        for _ in range(3):
            value = step(value)
        variable.assign(value)
    after = tensors["large"].value.addressable_shards[0]
    return not np.array_equal(np.asarray(after.data), values()["large"][after.index])


def part_of(source: Path) -> Part:
    """This process's, or process 0's, if another number of processes saved."""
    saved = int(source.name.rpartition("-")[2])
    return part() if jax.process_count() == saved else Part(0, saved)


def part() -> Part:
    """This process's."""
    return Part(jax.process_index(), jax.process_count(), frozenset({"own"}))


Spread = dict[str, dict[str, keras.Variable]]


def save(directory: Path, spread: Spread) -> Iterator[dict[str, Any]]:
    expected = values()
    for name, tensors in spread.items():
        for each, variable in tensors.items():
            fill(variable, expected[each])
        snapshot = get_backend().snapshot(
            {**tensors, "own": np.array([jax.process_index()])}
        )
        held = snapshot.arrays
        shards = {k: v for k, v in held.items() if isinstance(v, Shards)}
        in_place = all(
            any(
                np.asarray(piece).ctypes.data == shard.data.unsafe_buffer_pointer()
                for shard in tensors[k].value.addressable_shards
            )
            for k, v in shards.items()
            for piece in v.owned.values()
        )
        changed = donate(tensors)
        target = directory / name
        target.mkdir(parents=True)
        snapshot.write(str(target), part())
        yield {
            "layout": name,
            "held": sum(
                np.asarray(piece).nbytes
                for v in shards.values()
                for piece in v.owned.values()
            ),
            "sharded": sum(expected[k].nbytes for k in shards),
            "whole": sorted(held.keys() - shards.keys()),
            "in_place": in_place,
            "trained_on": changed,
        }


@contextmanager
def noted_reads() -> Iterator[list[int]]:
    """The bytes of every slice that is read."""
    read, sizes = StoredTensor.__getitem__, []

    def noting(self: StoredTensor, index: tuple[slice, ...]) -> np.ndarray:
        array = read(self, index)
        sizes.append(array.nbytes)
        return array

    StoredTensor.__getitem__ = noting  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        StoredTensor.__getitem__ = read  # type: ignore[method-assign]


def load(directory: Path, spread: Spread) -> Iterator[dict[str, Any]]:
    expected, adapter = values(), get_backend()
    for source in sorted(directory.iterdir()):
        for name, tensors in spread.items():
            for each, variable in tensors.items():
                fill(variable, np.zeros_like(expected[each]))
            before = {
                k: (v.value.sharding, v.value.committed) for k, v in tensors.items()
            }
            step = jax.jit(lambda x: x * 2)
            step(tensors["large"].value)
            with noted_reads() as sizes:
                several = jax.process_count() > 1
                part = part_of(source)
                read = backends.read(adapter.name, str(source), part, lazy=several)
                lazy = {k for k, v in read.items() if isinstance(v, StoredTensor)}
                for each, variable in tensors.items():
                    adapter.assign(variable, read[each])
            step(tensors["large"].value)
            after = {
                k: (v.value.sharding, v.value.committed) for k, v in tensors.items()
            }
            yield {
                "source": source.name,
                "layout": name,
                "wrong": [k for k, v in tensors.items() if not equal(v, expected[k])],
                "moved": [k for k in tensors if before[k] != after[k]],
                "compiled": step._cache_size(),
                "own": np.asarray(read["own"]).tolist(),
                "lazy": sorted(lazy),
                "read": sum(sizes),
                "needed": sum(needed(tensors[k]) for k in lazy),
            }


def equal(variable: keras.Variable, expected: np.ndarray) -> bool:
    return all(
        np.asarray(shard.data).tobytes() == expected[shard.index].tobytes()
        for shard in variable.value.addressable_shards
    )


def needed(variable: keras.Variable) -> int:
    """Bytes of the different shards that this process's devices have."""
    shards = variable.value.addressable_shards
    return sum({str(each.index): each.data.nbytes for each in shards}.values())


def take_turns(directory: Path, act: Callable[[], None]) -> None:
    """Act while the other processes do nothing, the last process first."""
    rank, count = jax.process_index(), jax.process_count()
    done = directory.with_suffix(f".{rank}-done")
    before = directory.with_suffix(f".{rank + 1}-done")
    while rank + 1 < count and not before.exists():
        time.sleep(0.05)
    act()
    done.touch()


def main(what: str, where: str) -> None:
    if "RANK" in os.environ:
        keras.distribution.initialize()
    directory = Path(where)
    # Keras makes variables with the help of all processes.
    spread = {name: variables(make()) for name, make in layouts().items()}

    def act() -> None:
        mine = directory / str(jax.process_index()) if what == "save" else directory
        for line in {"save": save, "load": load}[what](mine, spread):
            print(json.dumps(line), flush=True)

    take_turns(directory.parent / what, act)
    # Nobody leaves while another one trains.
    multihost_utils.sync_global_devices("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
