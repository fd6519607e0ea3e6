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
from pathlib import Path
from typing import Any, NamedTuple

from resilient.keras_internals import contract
from resilient.keras_internals.expected import OF_TENSORBOARD
from resilient.objects.callbacks.special import Special, elapsed, set_clocks
from resilient.storage.files import replace_file

_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\.(.+)\.(\d+)\.(\d+)\.v2")
_CLOCKS = ("_epoch_start_time",)


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


class EventFiles(Special):
    """The files and writers of a ``TensorBoard`` callback."""

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
        self._root = Path(callback.log_dir)
        self._recorded: Collection[str] = ()
        self._earlier: Collection[_EventFile] = ()
        mine = sorted(self._own().values())
        # A writer that the callback already has is the newest one.
        self._earlier = mine[:-1] if callback._writers else mine

    def state(self) -> dict[str, Any] | None:
        """Bytes of each file, seconds since the epoch began, the default step."""
        callback = self._callback
        if not self._is_local():
            return None
        for writer in callback._writers.values():
            writer.flush()
        ours = self._files().keys() & {*self._own(), *self._recorded}
        pushed = callback._prev_summary_state
        step = callback.summary.experimental.get_step() if pushed else None
        return {
            "files": {key: (self._root / key).stat().st_size for key in sorted(ours)},
            "ago": elapsed(callback, _CLOCKS),
            "step": step if isinstance(step, int) else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        callback, sizes, step = self._callback, state["files"], state["step"]
        set_clocks(callback, _CLOCKS, state["ago"])
        self._recorded = sizes
        pushed = len(callback._prev_summary_state)
        for _ in range(pushed):
            callback._pop_writer()
        for writer in callback._writers.values():
            writer.close()
        callback._writers = {}
        found = self._files()
        lost = [self._cut(key, sizes[key], exists=key in found) for key in sizes]
        self._warn(*filter(None, lost))
        self._keep_only(sizes)
        if pushed:
            # The default summary writer, which also records other code's summaries.
            step = callback._global_train_batch if step is None else step
            callback._push_writer(callback._train_writer, step)

    def begin_anew(self, began: float) -> None:
        self._keep_only(self._own())

    def _cut(self, key: str, size: int, *, exists: bool) -> str | None:
        """Shorten a file to its recorded size, or say what it lacks.

        In a new file: a writer of the old one may still exist in this process, and must
        not flush into this one. Only a file that is there is touched, whatever the
        checkpoint names.
        """
        path = self._root / key
        found = path.stat().st_size if exists else 0
        if found > size:
            for other in path.parent.glob(f"{path.name}.tmp-*"):
                other.unlink()  # of an attempt that was killed here
            replace_file(path, path.read_bytes()[:size])
        return f"{key} lost its last {size - found:,} bytes" if found < size else None

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

    def _files(self) -> dict[str, _EventFile]:
        """All event files, by their path in the log directory."""
        found = {}
        for part in ("train", "validation"):
            for path in (self._root / part).glob("events.out.tfevents.*"):
                if match := _NAME.fullmatch(path.name):
                    created, host, pid, number = match.groups()
                    file = _EventFile(int(created), int(number), host, int(pid))
                    found[f"{part}/{path.name}"] = file
        return found

    def _own(self) -> dict[str, _EventFile]:
        """The files of all writers that this callback had in this fit."""
        me = socket.gethostname(), os.getpid()
        return {
            key: file
            for key, file in self._files().items()
            if (file.host, file.pid) == me and file not in self._earlier
        }
