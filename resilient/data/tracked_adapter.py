"""What the adapters of data that Python iterates have in common."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from resilient import keras_internals
from resilient.data import Positioned
from resilient.data.source import TrackedIterable
from resilient.serialization import JSON
from resilient.serialization.position import DataPosition


class TrackedAdapter(Positioned):
    """Mixed into one of Keras's adapters: its positions are those of ``tracked``."""

    tracked: TrackedIterable

    def as_given(self) -> Iterable[Any]:
        """The batches as the data gives them: nothing of Keras converts them."""
        return self.tracked

    def position(self, drawn: int, *, held: bool) -> DataPosition:
        epochs = keras_internals.generation.epochs(self)
        return replace(self.tracked.position(drawn, held=held), epochs=epochs)

    def resume(self, position: DataPosition) -> None:
        keras_internals.generation.set_epochs(self, position.epochs)
        self.tracked.resume(position)

    def seek(self, position: DataPosition) -> None:
        self.tracked.seek(position)

    def on_trained(self, drawn: int) -> None:
        self.tracked.on_trained(drawn)

    def frozen(self) -> contextlib.AbstractContextManager[Any]:
        lock: contextlib.AbstractContextManager[Any] = self.tracked.lock
        return lock

    def fingerprint(self) -> JSON:
        return self.tracked.source.fingerprint()
