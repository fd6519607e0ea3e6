"""Keeps TensorBoard's event files free of duplicate or missing steps.

A snapshot records the length of each event file of the run. A resume truncates them to
that length, deletes files that dead attempts began later, and gives the callback new
writers, so that what it repeated when ``fit`` began (the model's graph) is gone as
well.

Files that no attempt of this run wrote are never touched, nor are remote log
directories, with a warning. An interrupted profile is not repeated.
"""

import os
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from resilient.keras_internals import contract
from resilient.keras_internals.expected import OF_TENSORBOARD
from resilient.objects.callbacks.special import (
    Special,
    elapsed,
    replacing,
    set_clocks,
)
from resilient.serialization.schema import Count, MalformedError
from resilient.storage.files import open_file

_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\.(.+)\.(\d+)\.(\d+)\.v2")
_WRITERS = ("train", "validation")
_CLOCKS = ("_epoch_start_time",)


@dataclass(frozen=True)
class _State:
    """A checkpoint's state of the callback.

    Attributes:
        files: Bytes of each event file, by its path in the log directory.
        ago: Seconds since the epoch began, if one did.
        step: The step of the default writer.
    """

    files: dict[str, Count]
    ago: dict[str, float]
    step: int | None = None


class _EventFile(NamedTuple):
    """The parts of an event file's name; sorts by age.

    Attributes:
        created: Unix time in whole seconds.
        number: The number of the writer in its process.
        host: Name of the machine that wrote it.
        pid: Process that wrote it.
    """

    created: int
    number: int
    host: str
    pid: int


def _is_key(key: object) -> bool:
    """Whether ``capture`` would name this event file; nothing else is truncated."""
    parts = Path(key).parts if isinstance(key, str) else ()
    return len(parts) == 2 and parts[0] in _WRITERS and bool(_NAME.fullmatch(parts[1]))


def _shorten(path: Path, size: int) -> None:
    """Keep the first ``size`` bytes.

    In a new file: a writer of the old one may still exist in this process, and must not
    flush into this one.
    """
    descriptor = open_file(path.parent, path.name)
    with open(descriptor, "rb") as source, replacing(path) as target:
        while size and (chunk := source.read(min(size, 2**20))):
            target.write(chunk)
            size -= len(chunk)


class EventFiles(Special):
    """The files and writers of a ``TensorBoard`` callback."""

    record = _State
    skipped = frozenset(
        {
            *("_writers", "_prev_summary_state", "_summary_module"),
            *("_profiler_started", "_batch_trace_context", "_is_tracing"),
            *("_batch_start_time", "_epoch_start_time"),
        }
    )
    place = "log_dir"

    def __init__(self, callback: Any, attempts: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(callback, attempts)
        contract.require_known(OF_TENSORBOARD)
        self._recorded: Collection[str] = ()
        self._earlier: list[_EventFile] = []
        mine = sorted(self._own().values())
        # A writer that the callback already has is the newest one.
        self._earlier = mine[:-1] if callback._writers else mine

    def state(self) -> dict[str, Any] | None:
        callback = self._callback
        if not self._is_local():
            return None
        for writer in callback._writers.values():
            writer.flush()
        paths = {key: self._root / key for key in {*self._own(), *self._recorded}}
        sizes = {k: p.stat().st_size for k, p in sorted(paths.items()) if p.exists()}
        step = None
        if callback._prev_summary_state:  # always 0 if Keras sets it only once
            step = callback.summary.experimental.get_step()
        return {
            "files": sizes,
            "ago": elapsed(callback, _CLOCKS),
            "step": step if isinstance(step, int) else None,
        }

    def check(self, state: _State) -> None:
        if strange := [key for key in state.files if not _is_key(key)]:
            raise MalformedError(f"{strange[0]!r} is not an event file of TensorBoard")

    def begin_anew(self) -> None:
        """Delete files of attempts that died before their first checkpoint."""
        if self._is_local():
            self._keep_only(self._own())

    def restore(self, state: _State) -> None:
        callback = self._callback
        set_clocks(callback, _CLOCKS, state.ago)
        if not self._is_local():
            return
        self._recorded = state.files
        pushed = len(callback._prev_summary_state)
        for _ in range(pushed):
            callback._pop_writer()
        for writer in callback._writers.values():
            writer.close()
        callback._writers = {}
        cut = [_cut(self._root / key, size) for key, size in state.files.items()]
        self._warn(*filter(None, cut))
        self._keep_only(state.files)
        if pushed:
            # The default summary writer, which also records other code's summaries.
            step, now = state.step, callback._global_train_batch
            callback._push_writer(callback._train_writer, now if step is None else step)

    def _keep_only(self, kept: Collection[str]) -> None:
        """Delete files that no others than attempts of this run wrote."""
        own = self._own()
        for key, file in self._files().items():
            if key not in kept and (key in own or self._died(file)):
                (self._root / key).unlink(missing_ok=True)

    def _died(self, file: _EventFile) -> bool:
        """Whether a dead attempt of this run wrote the file."""
        return any(
            (file.host, file.pid) == (attempt.get("host"), attempt.get("pid"))
            and int(attempt["started"]) <= file.created
            for attempt in self._attempts
        )

    @property
    def _root(self) -> Path:
        return Path(self._callback.log_dir)

    def _files(self) -> dict[str, _EventFile]:
        """All event files, by their path in the log directory."""
        found = {}
        for path in self._root.glob("*/events.out.tfevents.*"):
            key = f"{path.parent.name}/{path.name}"
            match = _NAME.fullmatch(path.name)
            if match and _is_key(key):
                created, host, pid, number = match.groups()
                found[key] = _EventFile(int(created), int(number), host, int(pid))
        return found

    def _own(self) -> dict[str, _EventFile]:
        """The files of all writers that this callback had in this fit."""
        me = socket.gethostname(), os.getpid()
        return {
            key: file
            for key, file in self._files().items()
            if (file.host, file.pid) == me and file not in self._earlier
        }


def _cut(path: Path, size: int) -> str | None:
    """Shorten an event file to its recorded size, or say why that is not possible."""
    if path.is_symlink():
        return f"{path} is a symbolic link, which is not followed"
    found = path.stat().st_size if path.exists() else -1
    if found > size:
        _shorten(path, size)
    if found < 0:
        return f"{path} is gone"
    return f"{path} lost its last {size - found:,} bytes" if found < size else None
