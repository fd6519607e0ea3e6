"""The interface to a Keras callback's state in files and progress bars."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from resilient.serialization import Encoded

Action = Callable[[], object]
Arrays = Mapping[str, np.ndarray]


class Special(Protocol):
    """The special state of one callback.

    Attributes:
        skipped: Names of attributes that are captured here or not at all.
    """

    skipped: frozenset[str]

    def capture(self, arrays: dict[str, np.ndarray], name: str) -> Encoded | None:
        """What to keep; None if there is nothing."""

    def plan(self, saved: Encoded, arrays: Arrays) -> list[Action]:
        """Actions that restore what was captured; nothing happens before they run.

        Raises:
            MalformedError: It is not what was captured.
        """

    def begin_anew(self) -> None:
        """Undo what was left by attempts that died before their first checkpoint."""
