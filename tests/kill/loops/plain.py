"""The loop that a user had before: what an uninterrupted run is compared with."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any


class Plain:
    """What ``resilient.Run`` is, without saving anything."""

    def __init__(self, state: Any = None, **objects: Any) -> None:
        self.state = state
        self.history: dict[str, list[float]] = defaultdict(list)
        self.step = 0

    def epochs(self, count: int) -> Iterator[int]:
        yield from range(count)

    def batches(self, data: Any) -> Iterator[tuple[int, Any]]:
        for batch in data:
            yield self.step, batch
            self.step += 1

    def loop(
        self, data: Any, *, epochs: int, steps_per_epoch: int | None = None
    ) -> Iterator[tuple[int, int, Any]]:
        for epoch in range(epochs):
            for step, batch in self.batches(islice(data, steps_per_epoch)):
                yield epoch, step, batch

    def log(self, **values: Any) -> None:
        for name, value in values.items():
            self.history[name].append(float(value))

    def __enter__(self) -> "Plain":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def advance(self, steps: int = 1) -> None:
        self.step += steps
