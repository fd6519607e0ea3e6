"""Keeps what Keras's progress bar shows, so that it goes on at its batch."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from resilient.objects.callbacks.special import (
    Action,
    Arrays,
    Special,
    elapsed,
    set_clocks,
)
from resilient.serialization import Encoded
from resilient.serialization.decoding import decode
from resilient.serialization.json_values import NotEncodable, encode
from resilient.serialization.schema import well_formed

# Attributes of keras.utils.Progbar; missing ones are skipped.
SEEN = ("_seen_so_far", "_values", "_values_order")
CLOCKS = ("_start", "_time_at_epoch_start", "_time_after_first_step")


@dataclass(frozen=True)
class _Bar:
    """A checkpoint's state of a progress bar."""

    seen: dict[str, Any]
    ago: dict[str, float]


class ProgressBar(Special):
    """The position of a progress bar, and the means and times that it shows."""

    skipped = frozenset({"progbar", "verbose", "epochs"})

    def capture(self, arrays: dict[str, np.ndarray], name: str) -> Encoded | None:
        bar = self._callback.progbar
        if not bar:
            return None
        seen = {key: vars(bar)[key] for key in SEEN if key in vars(bar)}
        try:
            return encode({"seen": seen, "ago": elapsed(bar, CLOCKS)}, arrays, name)
        except NotEncodable:  # the value of a custom metric: the bar starts over
            return None

    def plan(self, saved: Encoded, arrays: Arrays) -> list[Action]:
        state = well_formed(_Bar, decode(saved, arrays), "a progress bar")
        return [lambda: self._restore(state)]

    def _restore(self, state: _Bar) -> None:
        bar = self._callback.progbar
        if bar is not None:  # the epoch has begun
            vars(bar).update({k: v for k, v in state.seen.items() if k in SEEN})
            set_clocks(bar, CLOCKS, state.ago)
