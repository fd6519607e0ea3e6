"""Keeps TensorBoard's event files free of duplicate or missing steps.

A snapshot records the length of each event file of the run. A resume truncates them to
that length, deletes files that dead attempts began later, and gives the callback new
writers, so that what it repeated when ``fit`` began (the model's graph) is gone as
well.

Files that no attempt of this run wrote are never touched. Remote log directories are
left alone, with a warning. An interrupted profile is not repeated.
"""

import os
import re
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from resilient.errors import warn_not_exact
from resilient.keras_internals import contract
from resilient.keras_internals.expected import OF_TENSORBOARD
from resilient.objects.callbacks.special import Action, Arrays
from resilient.serialization import Encoded
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import encode
from resilient.serialization.schema import Count, MalformedError, well_formed
from resilient.storage.files import open_file

_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\.(.+)\.(\d+)\.(\d+)\.v2")
_WRITERS = ("train", "validation")


@dataclass(frozen=True)
class _State:
    """A checkpoint's state of the callback.

    Attributes:
        files: Bytes of each event file, by its path in the log directory.
        epoch_began_ago: Seconds since the epoch began; None before the first epoch.
        step: The step of the default writer.
    """

    files: dict[str, Count]
    epoch_began_ago: float | None
    step: int | None = None


class EventFile(NamedTuple):
    """The parts of an event file's name; sorts by age.

    Attributes:
        created: Unix time in whole seconds.
        number: The number of the writer in its process.
        host: Name of the machine that wrote it.
        pid: Process that wrote it.
        path: The file.
    """

    created: int
    number: int
    host: str
    pid: int
    path: Path


def event_files(directory: Path) -> list[EventFile]:
    """The event files directly in a directory, oldest first."""
    found = []
    for path in directory.iterdir() if directory.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match:
            created, host, pid, number = match.groups()
            found.append(EventFile(int(created), int(number), host, int(pid), path))
    return sorted(found)


def _is_mine(file: EventFile) -> bool:
    return (file.host, file.pid) == (socket.gethostname(), os.getpid())


def _is_key(key: object) -> bool:
    """Whether ``capture`` would name this event file; nothing else is truncated."""
    parts = Path(key).parts if isinstance(key, str) else ()
    return len(parts) == 2 and parts[0] in _WRITERS and bool(_NAME.fullmatch(parts[1]))


def _shorten(path: Path, size: int) -> None:
    """Keep the first ``size`` bytes.

    In a new file: a writer of the old one may still exist in this process, and must not
    flush into this one.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    descriptor = open_file(path.parent, path.name)
    with open(descriptor, "rb") as source, open(part, "xb") as target:
        while size and (chunk := source.read(min(size, 2**20))):
            target.write(chunk)
            size -= len(chunk)
    os.replace(part, path)


class EventFiles:
    """The files and writers of a ``TensorBoard`` callback.

    Args:
        callback: The callback, after its ``on_train_begin``.
        attempts: ``host``, ``pid`` and start (``started``) of the
            processes that worked on this run before and died.
    """

    skipped = frozenset(
        {
            "_writers",
            "_prev_summary_state",
            "_summary_module",
            "_profiler_started",
            "_batch_trace_context",
            "_is_tracing",
            "_batch_start_time",
            "_epoch_start_time",
        }
    )

    def __init__(self, callback: Any, attempts: Sequence[Mapping[str, Any]]) -> None:
        contract.require_known(OF_TENSORBOARD)
        self._callback = callback
        self._attempts = attempts
        self._recorded: dict[str, int] = {}
        self._warned: set[str] = set()
        self._first = (0, 0)
        mine = [file[:2] for file in self._files() if _is_mine(file)]
        if mine:
            newest = max(mine)
            # A writer that the callback already has is the newest one.
            self._first = newest if callback._writers else (newest[0], newest[1] + 1)

    def capture(self, arrays: dict[str, np.ndarray], name: str) -> Encoded | None:
        if self._is_remote():
            return None
        for writer in self._callback._writers.values():
            writer.flush()
        paths = {file.path for file in self._own()}
        paths.update(self._root / key for key in self._recorded)
        sizes = {
            str(path.relative_to(self._root)): path.stat().st_size
            for path in sorted(paths)
            if path.exists()
        }
        began = getattr(self._callback, "_epoch_start_time", None)
        ago = None if began is None else time.time() - began
        state = {"files": sizes, "epoch_began_ago": ago, "step": self._default_step()}
        return encode(state, arrays, name)

    def plan(self, saved: Encoded, arrays: Arrays) -> list[Action]:
        state = well_formed(_State, decode(saved, arrays), "a TensorBoard")
        if strange := [key for key in state.files if not _is_key(key)]:
            raise MalformedError(f"{strange[0]!r} is not an event file of TensorBoard")
        return [lambda: self._restore(state)]

    def begin_anew(self) -> None:
        """Delete files of attempts that died before their first checkpoint."""
        if not self._is_remote():
            self._remove_later({})

    def _restore(self, state: _State) -> None:
        callback, files = self._callback, state.files
        if state.epoch_began_ago is not None:
            # As if the time in between had not passed.
            callback._epoch_start_time = time.time() - state.epoch_began_ago
        if self._is_remote():
            return
        self._recorded = files
        pushed = len(callback._prev_summary_state)
        for _ in range(pushed):
            callback._pop_writer()
        for writer in callback._writers.values():
            writer.close()
        callback._writers = {}
        for key, size in files.items():
            self._cut(self._root / key, size)
        for file in self._own():
            if str(file.path.relative_to(self._root)) not in files:
                file.path.unlink()
        self._remove_later(files)
        if pushed:
            # The default summary writer, which also records other code's summaries.
            step = state.step
            if step is None:
                step = callback._global_train_batch
            callback._push_writer(callback._train_writer, step)

    def _default_step(self) -> int | None:
        """The step of the default writer: always 0 if Keras sets it only once."""
        if not self._callback._prev_summary_state:
            return None
        step = self._callback.summary.experimental.get_step()
        return step if isinstance(step, int) else None

    def _cut(self, path: Path, size: int) -> None:
        if path.is_symlink():
            self._warn(f"{path} is a symbolic link, which is not followed")
            return
        found = path.stat().st_size if path.exists() else -1
        if found < size:
            state = "is gone" if found < 0 else f"lost its last {size - found:,} bytes"
            self._warn(f"{path} {state}")
        elif found > size:
            _shorten(path, size)

    def _remove_later(self, recorded: Mapping[str, int]) -> None:
        """Delete files of dead attempts that are in no checkpoint."""
        own = {file.path for file in self._own()}
        for file in self._files():
            key = str(file.path.relative_to(self._root))
            if file.path not in own and key not in recorded and self._died(file):
                file.path.unlink(missing_ok=True)

    def _died(self, file: EventFile) -> bool:
        """Whether a dead attempt of this run wrote the file."""
        starts = [float(a["started"]) for a in self._attempts]
        for attempt, start in zip(self._attempts, starts, strict=True):
            end = min((s for s in starts if s > start), default=time.time())
            if (file.host, file.pid) == (
                attempt.get("host"),
                attempt.get("pid"),
            ) and int(start) <= file.created <= end:
                return True
        return False

    @property
    def _root(self) -> Path:
        return Path(self._callback.log_dir)

    def _files(self) -> list[EventFile]:
        directories = (self._root / writer for writer in _WRITERS)
        return [file for path in directories for file in event_files(path)]

    def _own(self) -> list[EventFile]:
        """The files of all writers that this callback had in this fit."""
        return [f for f in self._files() if _is_mine(f) and f[:2] >= self._first]

    def _is_remote(self) -> bool:
        remote = "://" in self._callback.log_dir
        if remote:
            self._warn(f"{self._callback.log_dir} is not a local directory")
        return remote

    def _warn(self, why: str) -> None:
        if why not in self._warned:
            self._warned.add(why)
            warn_not_exact("TensorBoard may show missing or duplicate steps", [why])
