"""Keeps the times of Keras's progress bar, so that it shows how long a step takes."""

from resilient.objects.callbacks.special import Special, elapsed, set_clocks

# Attributes of keras.utils.Progbar; missing ones are skipped.
CLOCKS = ("_start", "_time_at_epoch_start", "_time_after_first_step")


class ProgressBar(Special):
    """The times of a progress bar; Keras sets its position with each batch."""

    skipped = frozenset({"progbar", "verbose", "epochs"})

    def state(self) -> dict[str, dict[str, float]] | None:
        bar = self._callback.progbar
        return {"ago": elapsed(bar, CLOCKS)} if bar else None

    def restore(self, state: dict[str, dict[str, float]]) -> None:
        if self._callback.progbar is not None:  # the epoch has begun
            set_clocks(self._callback.progbar, CLOCKS, state["ago"])
