"""What a callback of Keras needs besides its attributes: files, and a progress bar."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from resilient.serialization import Encoded

Action = Callable[[], object]
Arrays = Mapping[str, np.ndarray]


class Special(Protocol):
    """One callback's.

    Attributes:
        skipped: Names of attributes that are captured here, or not at all.
    """

    skipped: frozenset[str]

    def capture(self, arrays: dict[str, np.ndarray], name: str) -> Encoded | None:
        """What to keep; None if there is nothing."""

    def plan(self, saved: Encoded, arrays: Arrays) -> list[Action]:
        """What to do to be as captured; nothing is done before the actions run.

        Raises:
            MalformedError: That was not captured.
        """

    def begin_anew(self) -> None:
        """Undo what attempts left that died before their first checkpoint."""
