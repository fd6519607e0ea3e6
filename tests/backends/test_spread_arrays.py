"""JAX arrays spread over devices and processes, saved by their owners, in any layout.

What is written in one layout is read in every other one, slice by slice. Two processes
act in turns: neither needs the other to save or to load.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import SUPPORT, gang

from resilient import backends
from resilient.backends.base import Part
from resilient.errors import CorruptCheckpointError
from resilient.supervise.environment import free_ports, of_process

pytestmark = [
    pytest.mark.skipif(os.environ["KERAS_BACKEND"] != "jax", reason="about JAX"),
    pytest.mark.xdist_group("spread arrays"),
    pytest.mark.timeout(600),
]
SCRIPT = SUPPORT / "spread_arrays.py"
Lines = list[dict[str, Any]]


class Saved:
    """Checkpoints in every layout, and what was said while they were written."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory / "checkpoints"
        self._environment = environment
        self.by_one = self._save(directory / "one", 1)
        self.by_two = self._save(directory / "two", 2)

    def _save(self, directory: Path, processes: int) -> list[Lines]:
        said = self.run("save", directory, processes)
        for process in range(processes):
            for layout in (directory / str(process)).iterdir():
                put_together(layout, self.directory / f"{layout.name}-by-{processes}")
        return said

    def run(self, what: str, directory: Path, processes: int) -> list[Lines]:
        """Let some processes act on a directory; what each of them says."""
        ports = free_ports(processes + 2)
        each = [self._process(rank, processes, ports) for rank in range(processes)]
        ended = gang.run_with(each, SCRIPT, what, directory, timeout=300).check()
        return [
            [json.loads(line) for line in output.splitlines() if line.startswith("{")]
            for output in ended.outputs
        ]

    def _process(self, rank: int, processes: int, ports: list[int]) -> dict[str, str]:
        flag = f"--xla_force_host_platform_device_count={4 // processes}"
        mine = {
            "XLA_FLAGS": f"{self._environment['XLA_FLAGS']} {flag}",
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        }
        return of_process(mine, Path("unused"), rank, processes, ports)


def put_together(source: Path, target: Path) -> None:
    """Move the files of one process to those of the others."""
    for file in [path for path in source.rglob("*") if path.is_file()]:
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        assert not place.exists()
        file.rename(place)


@pytest.fixture(scope="module")
def saved(
    tmp_path_factory: pytest.TempPathFactory, child_environment: dict[str, str]
) -> Iterator[Saved]:
    directory = tmp_path_factory.mktemp("spread")
    yield Saved(directory, child_environment)
    shutil.rmtree(directory)


def test_each_shard_is_held_once_and_never_copied(saved: Saved) -> None:
    """By its owner: over all processes as many bytes as the arrays have."""
    for said in (saved.by_one, saved.by_two):
        for lines in zip(*said, strict=True):
            assert sum(line["held"] for line in lines) == lines[0]["sharded"]
            assert all(line["in_place"] for line in lines)
            assert all(line["trained_on"] for line in lines)
    shares = [lines[0]["held"] / lines[0]["sharded"] for lines in saved.by_two[:1]]
    assert shares == [0.5]


def test_what_has_replicas_is_held_by_process_0(saved: Saved) -> None:
    """Others hold nothing whole but what is their own."""
    first, second = saved.by_two
    assert {tuple(line["whole"]) for line in second} == {("own",)}
    for line in first:
        assert {"own", "scalar", "seed", "whole", "nothing"} <= set(line["whole"])


@pytest.mark.parametrize("processes", [1, 2])
def test_every_layout_is_loaded_in_every_other_one(
    saved: Saved, processes: int
) -> None:
    """Byte for byte, where the variables are, and without compiling again."""
    said = saved.run("load", saved.directory, processes)
    for rank, lines in enumerate(said):
        assert len(lines) == 8 * (5 if processes == 1 else 3)
        for line in lines:
            assert line["wrong"] == line["moved"] == [], line
            assert line["compiled"] == 1, line
            # Of what is in shards, no more than its own devices need.
            assert line["read"] == line["needed"], line
            # Another number of processes has what process 0 had.
            by_two = line["source"].endswith("by-2") and processes == 2
            assert line["own"] == [rank if by_two else 0], line
    if processes == 2:
        large = [line for line in said[0] if line["source"] == "one-by-1"]
        assert {"large", "whole"} == set(large[0]["lazy"])


@pytest.mark.parametrize("name", ["model-by-2", "batch-model-by-1", "data-by-2"])
def test_orbax_reads_what_several_processes_wrote(saved: Saved, name: str) -> None:
    """In one process, without anything of ours."""
    import jax
    import orbax.checkpoint as ocp
    from support.spread_arrays import values
    from support.tensor_cases import differing

    state = saved.directory / name / "state"
    read = dict(ocp.PyTreeCheckpointer().restore(state))
    expected = {**values(), "own": np.array([0])}
    assert differing(read, expected) == []
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    arguments = {
        each: ocp.ArrayRestoreArgs(sharding=sharding)
        if each == "large"
        else ocp.RestoreArgs()
        for each in expected
    }
    placed = ocp.PyTreeCheckpointer().restore(state, restore_args=arguments)
    assert isinstance(placed["large"], jax.Array)
    assert placed["large"].sharding == sharding
    assert np.asarray(placed["large"]).tobytes() == expected["large"].tobytes()


def test_a_lost_shard_is_an_error(saved: Saved, tmp_path: Path) -> None:
    """Not an array with zeros in it."""
    from resilient.backends import get_backend

    shutil.copytree(saved.directory / "model-by-2", tmp_path / "copy")
    (tmp_path / "copy/state/rows/1.0").unlink()
    rows = backends.read(get_backend().name, str(tmp_path / "copy"), Part(0, 2))["rows"]
    with pytest.raises(CorruptCheckpointError, match=r"rows: .* is missing"):
        np.asarray(rows)
