"""Processes that save together, without Keras, and are killed while they do.

They come from a fork server, in milliseconds, as those of ``checkpoint_kills``. This
module imports no pytest, since each of them imports it.
"""

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np

from resilient.backends.base import Part
from resilient.distributed import peer_watchdog
from resilient.distributed.group import Group
from resilient.distributed.rendezvous import join
from resilient.policies import latest
from resilient.progress import Progress
from resilient.saving.choose import choose_together
from resilient.saving.run_json import VariablesRun
from resilient.saving.snapshot import NOWHERE, VARIABLES, Snapshot
from resilient.saving.writer import Committer
from resilient.storage import layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.store import Store
from resilient.telemetry.events import Events
from support import fatal
from support.checkpoint_kills import FORKS
from support.shared_file import SharedFile

LAST = 5  # steps, each of which is saved


def attempt(home: Path, count: int, kills: dict[int, str]) -> list[int | None]:
    """Exit statuses of processes of which some are killed; see ``support.fatal``."""
    children = [
        FORKS.Process(target=_perform, args=(home, index, count, kills.get(index)))
        for index in range(count)
    ]
    home.joinpath("place").unlink(missing_ok=True)
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [child.exitcode for child in children]


def left(home: Path, count: int) -> list[dict]:
    """What each process wrote that came to its end: where it began, its calls."""
    return [json.loads((home / f"end-{index}").read_text()) for index in range(count)]


def committed(home: Path) -> list[int]:
    return layout.committed_steps(home / "checkpoints")


def parts(step: int, index: int) -> dict[str, bytes]:
    """The files with tensors of a process's part."""
    dice = random.Random(f"{step}-{index}")
    return {f"{name}-{index}": dice.randbytes(2000) for name in ("one", "other")}


def _perform(home: Path, index: int, count: int, kill: str | None) -> None:
    directory = home / "checkpoints"
    directory.mkdir(exist_ok=True)
    with (home / f"log-{index}").open("w") as log:
        os.dup2(log.fileno(), 2)

    peer_watchdog._NOTICE = 0.5  # seconds; no library has to notice anything here
    with join(SharedFile(index, count, home / "place"), directory) as group:
        calls = fatal.install(kill)
        assert calls is not None
        began = _save(group, directory)
    about = {"began": began, "calls": calls}
    (home / f"end-{index}").write_text(json.dumps(about))


def _save(group: Group, directory: Path) -> int:
    """Go on where the directory is, to the last step; where that was."""
    store, events = Store(directory), Events(directory)
    if group.index == 0:
        remove_stale_staging(store.directory)
    found = choose_together(group, store, "auto", _reader(group), events)
    began = 0 if found is None else found[0].step
    committer = Committer(
        store, keep=latest(2), events=events, environment={}, group=group, now=float
    )
    for step in range(began + 1, LAST + 1):
        name = layout.staging_name(step) if group.index == 0 else None
        committer.process(
            Snapshot(
                VariablesRun(),
                NOWHERE,
                Tensors(step, group.index),
                Progress(step, 0, step),
                Part(group.index, group.count),
                finished=step == LAST,
                staging=str(group.broadcast("staging", name)),
            )
        )
    return began


class Tensors:
    """What a process has in memory; all have the same of one piece."""

    def __init__(self, step: int, index: int) -> None:
        self._step, self._index = step, index
        self.arrays: dict[str, np.ndarray] = {}

    def write(self, directory: str, part: Part, *, below: str) -> list[str]:
        written = parts(self._step, self._index)
        for name, data in written.items():
            Path(directory, below, name).write_bytes(data)
        return [f"{below}/{name}" for name in written]

    def digests(self, part: Part) -> dict[str, str]:
        return {"whole": str(self._step), part.name: str(self._index)}

    def release(self) -> None:
        pass


def _reader(group: Group) -> Callable[[Checkpoint], None]:
    def read(checkpoint: Checkpoint) -> None:
        for index in range(group.count):
            for name, data in parts(checkpoint.step, index).items():
                assert (checkpoint.path / VARIABLES / name).read_bytes() == data

    return read


@dataclass(frozen=True)
class Member:
    """Of a group of two threads in place of processes."""

    index: int
    up: Queue[Any]
    down: Queue[Any]
    count: int = 2

    def broadcast(self, topic: str, value: Any = None) -> Any:
        if self.index:
            return self.down.get(timeout=60)
        self.down.put(value)
        return value

    def gather(self, topic: str, value: Any = None) -> list[Any]:
        if self.index == 0:
            return [value, self.up.get(timeout=60)]
        self.up.put(value)
        return []
