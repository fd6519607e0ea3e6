"""The base of what a Keras callback keeps outside its attributes, such as in files.

The script alone says where a callback writes: a checkpoint holds contents and sizes of
files in those places, and leads nowhere else.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from resilient.errors import warn_not_exact

# What may not be exact of files that are not kept, by the attribute with their path.
_INEXACT = {
    "filepath": "after a resume, this file may be from another fit, or from a later "
    "point in this one",
    "filename": "rows of this file may be missing or duplicated",
    "log_dir": "TensorBoard may show missing or duplicate steps",
}

# Attributes of keras.utils.Progbar; missing ones are skipped.
CLOCKS = ("_start", "_time_at_epoch_start", "_time_after_first_step")


class Special:
    """The special state of one callback.

    Args:
        callback: The callback, of which a model is set.
        attempts: ``host``, ``pid`` and start (``started``) of the processes that
            worked on this run before and died.

    Attributes:
        skipped: Names of attributes that are captured here or not at all.
        place: The attribute with the path that the script gave.
    """

    skipped: ClassVar[frozenset[str]] = frozenset()
    place: ClassVar[str] = ""

    def __init__(self, callback: Any, attempts: Sequence[Mapping[str, Any]]) -> None:
        self._callback, self._attempts = callback, attempts
        self._warned = False

    def state(self) -> Any:
        """Plain values and arrays; None if there is nothing to keep."""
        raise NotImplementedError

    def restore(self, state: Any) -> None:
        """Restore what ``state`` returned."""
        raise NotImplementedError

    def begin_anew(self, began: float) -> None:
        """Undo what attempts wrote that died before their first checkpoint.

        Args:
            began: When the first of them started.
        """

    def _warn(self, *whys: str) -> None:
        """Warn of what is not exact, once."""
        if whys and not self._warned:
            self._warned = True
            name, place = type(self._callback).__name__, self._given()
            found = [f"{name}({place!r}): {why}" for why in whys]
            warn_not_exact(_INEXACT[self.place], found)

    def _given(self) -> str:
        return str(getattr(self._callback, self.place))

    def _is_local(self) -> bool:
        local = "://" not in self._given()
        if not local:
            self._warn("it is not local")
        return local


def elapsed(owner: Any, clocks: Iterable[str]) -> dict[str, float]:
    """Seconds since the times that attributes hold."""
    now, found = time.time(), vars(owner)
    return {name: now - found[name] for name in clocks if found.get(name) is not None}


def set_clocks(owner: Any, clocks: Iterable[str], ago: Mapping[str, float]) -> None:
    """Set times as if none had passed since ``elapsed``."""
    now = time.time()
    vars(owner).update({name: now - ago[name] for name in clocks if name in ago})


class ProgressBar(Special):
    """The times of Keras's progress bar, so that it shows how long a step takes."""

    skipped = frozenset({"progbar", "verbose", "epochs"})

    def state(self) -> dict[str, dict[str, float]] | None:
        bar = self._callback.progbar
        return {"ago": elapsed(bar, CLOCKS)} if bar else None

    def restore(self, state: dict[str, dict[str, float]]) -> None:
        if self._callback.progbar is not None:  # the epoch has begun
            set_clocks(self._callback.progbar, CLOCKS, state["ago"])
