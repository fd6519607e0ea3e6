"""Where an attempt is killed: with SIGKILL, by itself, at a named point.

Or asked to stop, by another signal.

A kill point is text, so that it reads well in a test's id and travels as JSON:

* ``train_batch_end@1:3``     in that hook, epoch 1, batch 3 (or the first one after it)
* ``epoch_end@1``, ``epoch_begin@1``, ``train_begin``, ``train_end``
* ``test_batch_end@1:0``      during the validation of epoch 1
* ``.../first``               in the first callback of the list, not in the last
* ``call@17``                 just before the 17th file system call of the run
* ``save@2+0.0125``         that many seconds after the 2nd save of the attempt began
* ``after@0.125``             by the parent, that many seconds after training began
* ``... SIGTERM``             with that signal, once
"""

import signal
from dataclasses import dataclass
from typing import Any

import keras
from support.fatal import die


@dataclass(frozen=True)
class Point:
    """A parsed kill point."""

    event: str
    epoch: int = 0
    batch: int = 0
    first: bool = False
    which: signal.Signals = signal.SIGKILL

    @classmethod
    def parse(cls, text: str) -> "Point":
        rest, _, name = text.partition(" ")
        where, _, place = rest.partition("/")
        event, _, at = where.partition("@")
        if event in ("call", "save", "after"):
            return cls(event)
        epoch, _, batch = (at or "0").partition(":")
        which = signal.Signals[name or "SIGKILL"]
        return cls(event, int(epoch), int(batch or 0), place == "first", which)


class Killer(keras.callbacks.Callback):
    """Kills its process at ``point``; keeps nothing that a checkpoint could restore."""

    async_safe = True  # or Keras would give up its asynchronous callbacks because of us

    def __init__(self, point: Point | None) -> None:
        super().__init__()
        self.where = _Where(point)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}

    def on_train_begin(self, logs: Any = None) -> None:
        self.where.reached("train_begin")

    def on_train_end(self, logs: Any = None) -> None:
        self.where.reached("train_end")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.where.epoch = epoch
        self.where.reached("epoch_begin")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.where.reached("epoch_end")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.where.reached("train_batch_begin", batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.where.reached("train_batch_end", batch)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.where.reached("test_batch_end", batch)


class _Where:
    """The attempt's own memory of where it is, out of reach of any restore."""

    def __init__(self, point: Point | None) -> None:
        self.point = point
        self.epoch = 0
        self.trained: list[tuple[int, int]] = []

    def reached(self, event: str, batch: int = 0) -> None:
        if event == "train_batch_end":
            self.trained.append((self.epoch, batch))
        point = self.point
        if point is None or point.event != event:
            return
        whole = "train_" in event and "batch" not in event
        if whole or (self.epoch == point.epoch and batch >= point.batch):
            self.point = None  # one signal is enough
            die(point.which)
