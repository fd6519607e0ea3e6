"""Handles Keras callbacks with state outside their attributes.

``CSVLogger`` truncates its file when training begins, so the checkpoint holds the rows.
``ProgbarLogger`` continues at its batch. ``TensorBoard``, ``ModelCheckpoint`` and
``OrbaxCheckpoint`` are in ``tensorboard``, ``model_files`` and ``orbax``.

Files above ``CSV_LIMIT`` and files that are not local are left as they are, with a
warning.
"""

import csv
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from resilient.errors import warn_not_exact
from resilient.objects.callbacks.model_files import ModelFile
from resilient.objects.callbacks.orbax import OrbaxSteps
from resilient.objects.callbacks.special import Action, Arrays
from resilient.objects.callbacks.tensorboard import EventFiles
from resilient.serialization import Encoded
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import NotEncodable, encode
from resilient.serialization.schema import MalformedError, well_formed

CSV_LIMIT = 64 * 2**20  # bytes


def special(callback: Any) -> Any:
    """The class for the special treatment that a callback needs, if any."""
    if isinstance(callback, keras.callbacks.CSVLogger):
        return CsvFile
    if isinstance(callback, keras.callbacks.ProgbarLogger):
        return ProgressBar
    if isinstance(callback, keras.callbacks.TensorBoard):
        return EventFiles
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return ModelFile
    orbax = getattr(keras.callbacks, "OrbaxCheckpoint", None)  # since Keras 3.14
    return OrbaxSteps if orbax is not None and isinstance(callback, orbax) else None


@dataclass(frozen=True)
class _Rows:
    """A checkpoint's state of a ``CSVLogger``."""

    content: Any
    written: bool
    keys: list[str] | None
    append_header: bool


@dataclass(frozen=True)
class _Bar:
    """A checkpoint's state of a progress bar."""

    seen: dict[str, Any]
    ago: dict[str, float]


class CsvFile:
    """The file of a ``CSVLogger``: its bytes, and its columns."""

    skipped = frozenset({"csv_file", "writer", "keys", "append_header"})

    def __init__(self, callback: Any, attempts: Sequence[Mapping[str, Any]]) -> None:
        self._callback = callback
        self._attempts = attempts
        self._warned = False
        self._content = np.empty(0, np.uint8)

    def capture(self, arrays: dict[str, np.ndarray], name: str) -> Encoded | None:
        file = self._callback.csv_file
        if file is None or file.closed:
            return None
        if not self._is_local(file):
            return None
        file.flush()
        size = os.path.getsize(file.name)
        if size > CSV_LIMIT:
            self._warn(f"it has {size:,} bytes, more than {CSV_LIMIT:,}")
            return None
        if size != self._content.size:  # rows are only ever added
            self._content = np.fromfile(file.name, np.uint8)
        state = {
            "content": self._content,
            "written": self._callback.writer is not None,
            "keys": self._callback.keys,
            "append_header": self._callback.append_header,
        }
        return encode(state, arrays, name)

    def plan(self, saved: Encoded, arrays: Arrays) -> list[Action]:
        state = well_formed(_Rows, decode(saved, arrays), "the rows of a CSVLogger")
        if not isinstance(state.content, np.ndarray):
            raise MalformedError("the rows of a CSVLogger are not bytes")
        return [lambda: self._restore(state)]

    def begin_anew(self) -> None:
        file = self._callback.csv_file
        if not self._attempts or not file or not hasattr(file, "buffer"):
            return
        started = min(a["started"] for a in self._attempts)
        found = os.stat(file.name)
        if found.st_size and found.st_mtime >= started:
            self._warn("it has rows of an attempt that died before a checkpoint")

    def _restore(self, state: _Rows) -> None:
        callback = self._callback
        file = callback.csv_file
        if file is None or file.closed or not self._is_local(file):
            return
        file.seek(0)
        file.truncate()
        file.flush()
        file.buffer.write(state.content.tobytes())
        file.flush()
        callback.keys = state.keys
        callback.append_header = state.append_header
        callback.writer = None
        if state.written:
            # Otherwise Keras creates it with the next row, and repeats the header.
            callback.writer = csv.DictWriter(
                file,
                fieldnames=["epoch", *(state.keys or [])],
                delimiter=callback.sep,
            )

    def _is_local(self, file: Any) -> bool:
        if hasattr(file, "buffer"):
            return True
        self._warn("it is not a local file")
        return False

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            warn_not_exact(
                "rows of this file may be missing or duplicated",
                [f"CSVLogger({self._callback.filename!r}): {why}"],
            )


class ProgressBar:
    """The position of Keras's progress bar, and the means and times it shows."""

    skipped = frozenset({"progbar", "verbose", "epochs"})
    # Attributes of keras.utils.Progbar; missing ones are skipped.
    _SEEN = ("_seen_so_far", "_values", "_values_order")
    _CLOCKS = ("_start", "_time_at_epoch_start", "_time_after_first_step")

    def __init__(self, callback: Any, attempts: Sequence[Mapping[str, Any]]) -> None:
        self._callback = callback

    def capture(self, arrays: dict[str, np.ndarray], name: str) -> Encoded | None:
        bar = vars(self._callback.progbar) if self._callback.progbar else None
        if bar is None:
            return None
        now = time.time()
        seen = {key: bar[key] for key in self._SEEN if key in bar}
        ago = {key: now - bar[key] for key in self._CLOCKS if bar.get(key) is not None}
        try:
            return encode({"seen": seen, "ago": ago}, arrays, name)
        except NotEncodable:  # the value of a custom metric: the bar starts over
            return None

    def plan(self, saved: Encoded, arrays: Arrays) -> list[Action]:
        state = well_formed(_Bar, decode(saved, arrays), "a progress bar")
        return [lambda: self._restore(state)]

    def begin_anew(self) -> None:
        """Nothing to undo: a screen keeps nothing of an earlier attempt."""

    def _restore(self, state: _Bar) -> None:
        bar = self._callback.progbar
        if bar is None:  # the epoch has not begun
            return
        now = time.time()
        vars(bar).update({k: v for k, v in state.seen.items() if k in self._SEEN})
        # As if the time in between had not passed.
        began = {key: now - ago for key, ago in state.ago.items()}
        vars(bar).update({k: v for k, v in began.items() if k in self._CLOCKS})
