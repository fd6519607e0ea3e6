"""The base of what a Keras callback keeps outside its attributes, such as in files.

The script alone says where a callback writes: a name in a checkpoint selects among the
files that are in the callback's own directory, and never leads out of it.
"""

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from resilient.errors import warn_not_exact
from resilient.serialization import Encoded
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import encode
from resilient.serialization.schema import well_formed

Action = Callable[[], object]
Arrays = Mapping[str, np.ndarray]

# What may not be exact of files that are not kept, by the attribute with their path.
_INEXACT = {
    "filepath": "after a resume, this file may be from another fit, or from a later "
    "point in this one",
    "filename": "rows of this file may be missing or duplicated",
    "log_dir": "TensorBoard may show missing or duplicate steps",
}


class Special:
    """The special state of one callback.

    Args:
        callback: The callback, of which a model is set.
        attempts: ``host``, ``pid`` and start (``started``) of the processes that
            worked on this run before and died.

    Attributes:
        record: The type of the state.
        skipped: Names of attributes that are captured here or not at all.
        place: The attribute with the path that the script gave.
    """

    record: ClassVar[Any]
    skipped: ClassVar[frozenset[str]] = frozenset()
    place: ClassVar[str] = ""

    def __init__(self, callback: Any, attempts: Sequence[Mapping[str, Any]]) -> None:
        self._callback, self._attempts = callback, attempts
        self._warned = False

    def capture(self, arrays: dict[str, np.ndarray], name: str) -> Encoded | None:
        """What to keep; None if there is nothing."""
        state = self.state()
        return None if state is None else encode(state, arrays, name)

    def plan(self, saved: Encoded, arrays: Arrays) -> Action:
        """What restores the state that was captured; nothing happens before.

        Raises:
            MalformedError: It is not what was captured.
        """
        whose = f"the state of a {type(self._callback).__name__}"
        state = well_formed(self.record, decode(saved, arrays), whose)
        self.check(state)
        return partial(self.restore, state)

    def state(self) -> Any:
        """Values for ``record``; None if there is nothing to keep."""
        raise NotImplementedError

    def check(self, state: Any) -> None:
        """Refuse a state whose types are right, and its values wrong.

        Raises:
            MalformedError: It is.
        """

    def restore(self, state: Any) -> None:
        """Restore a state."""
        raise NotImplementedError

    def begin_anew(self) -> None:
        """Undo what attempts wrote that died before their first checkpoint."""

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


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file, which takes a file's place once it is complete."""
    unfinished = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.part")
    for other in path.parent.iterdir():
        if unfinished.fullmatch(other.name):  # of an attempt that was killed here
            other.unlink(missing_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            yield file
        if path.exists():
            shutil.copymode(path, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def elapsed(owner: Any, clocks: Iterable[str]) -> dict[str, float]:
    """Seconds since the times that attributes hold."""
    now, found = time.time(), vars(owner)
    return {name: now - found[name] for name in clocks if found.get(name) is not None}


def set_clocks(owner: Any, clocks: Iterable[str], ago: Mapping[str, float]) -> None:
    """Set times as if none had passed since ``elapsed``."""
    now = time.time()
    vars(owner).update({name: now - ago[name] for name in clocks if name in ago})
