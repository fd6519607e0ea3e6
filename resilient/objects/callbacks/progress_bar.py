"""Keeps what Keras's progress bar shows, so that it goes on at its batch."""

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilient.objects.callbacks.special import Special, elapsed, set_clocks
from resilient.serialization import Encoded
from resilient.serialization.json_values import NotEncodable

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

    record = _Bar
    skipped = frozenset({"progbar", "verbose", "epochs"})

    def capture(self, arrays: dict[str, np.ndarray], name: str) -> Encoded | None:
        with contextlib.suppress(NotEncodable):  # the value of a custom metric
            return super().capture(arrays, name)
        return None  # the bar starts over

    def state(self) -> dict[str, Any] | None:
        bar = self._callback.progbar
        if not bar:
            return None
        seen = {key: vars(bar)[key] for key in SEEN if key in vars(bar)}
        return {"seen": seen, "ago": elapsed(bar, CLOCKS)}

    def restore(self, state: _Bar) -> None:
        bar = self._callback.progbar
        if bar is not None:  # the epoch has begun
            vars(bar).update({k: v for k, v in state.seen.items() if k in SEEN})
            set_clocks(bar, CLOCKS, state.ago)
