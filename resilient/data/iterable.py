"""Custom iterables: anything with ``state_dict`` and ``load_state_dict``.

Keras's ``fit`` does not accept such data. Here it is passed to Keras as a generator, on
every backend, and returns to a position by its own two methods.

A loop may iterate over a list of batches, too, whose position is an index. Keras's
``fit`` takes a list to be arrays.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from resilient.data.generator import PythonData, PythonSource
from resilient.data.source import DataSource, SourceContext, plain_copy
from resilient.data.tracked import TrackedAdapter, TrackedIterable
from resilient.errors import DataNotResumableError
from resilient.serialization import JSON
from resilient.state.rng import kept_random_state

_KIND = "iterable"


class IterableData(PythonData):
    """An iterable with ``state_dict`` and ``load_state_dict`` as input.

    Such an iterable promises:

    * ``iter(x)`` starts an epoch, or continues one after ``load_state_dict``. It yields
        tuples ``(inputs,)``, ``(inputs, targets)`` or ``(inputs, targets,
        sample_weights)``, like a generator for Keras.
    * ``state_dict()`` describes what comes next, at any time between two batches, and
        after an iterator has ended (then the next epoch follows). It consists of plain
        values, lists, dicts and numpy arrays.
    * ``load_state_dict(state)`` accepts what ``state_dict()`` returned, in this or
        another process, any number of times.
    * ``len(x)``, if defined, is the number of batches in an epoch.
    """

    def __init__(self, x: Any, *, settings: SourceContext) -> None:
        source = IterableSource(x, settings)
        with kept_random_state(settings.backend):
            state = source.state()
            super().__init__(iter(x), source)
            source.load(state)


class IterableSource(PythonSource):
    """An iterable that saves and restores its own position."""

    def __init__(self, x: Any, settings: SourceContext) -> None:
        super().__init__(settings)
        self.name = type(x).__qualname__
        self.size = len(x) if hasattr(x, "__len__") else None
        self.building = settings.argument != "validation_data"
        self._x = x
        self._batches_of_an_epoch = self.size
        # With `validation_steps`, an evaluation leaves the rest to the next one.
        self._given = 0  # batches of the epoch
        self._ended = False  # the newest iterator

    def state(self) -> Any:
        """A copy of what ``state_dict`` returns."""
        return plain_copy(self._x.state_dict(), self.argument)

    def load(self, state: Any) -> None:
        """Load a copy of a state."""
        with self.restoring():
            self._x.load_state_dict(plain_copy(state, self.argument))

    def begin(self) -> Iterator[Any]:
        if self.building:
            return itertools.cycle(self.first)
        self._ended = False
        return self._to_the_end(iter(self._x))

    def position(self, *, live: bool) -> JSON:
        return {
            "kind": _KIND,
            "state": self.state(),
            "ended": live and self._ended,
            "given": self._given,
            "batches_of_an_epoch": self._batches_of_an_epoch,
        }

    def resume(self, position: JSON) -> None:
        self.load(position["state"])
        self._batches_of_an_epoch = position["batches_of_an_epoch"]
        self._given = position["given"]

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        self._ended = position["ended"]
        if self._ended:
            return iter(()), None
        self._given = given
        return self._to_the_end(iter(self._x)), None

    def fingerprint(self) -> JSON:
        return {"kind": _KIND, "class": self.name, "batches": self.size}

    def _to_the_end(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches; the iterator runs to its end before it yields the last one.

        Keras stops at the last batch if it knows the number, so code after an
        iterable's last ``yield`` might or might not run.
        """
        for batch in batches:
            self._given += 1
            if self._given == self._batches_of_an_epoch:
                self._require_end(batches)
                self._given, self._ended = 0, True
                yield batch
                return  # an iterator that is its own next epoch is not advanced further
            yield batch
        self._batches_of_an_epoch = self._given
        self._given, self._ended = 0, True

    def _require_end(self, batches: Iterator[Any]) -> None:
        for _ in batches:
            raise DataNotResumableError(
                f"{self.argument} has more batches than in the previous epoch, or "
                "than its len().",
                received=f"more than {self._given:,} batches",
                hint="Give every epoch the same number of batches.",
            )


class BatchList(TrackedAdapter):
    """Stands in for a Keras adapter; Keras has none for lists of batches."""

    def __init__(self, batches: list[Any], settings: SourceContext) -> None:
        self.num_batches = len(batches)
        self.tracked = TrackedIterable(_ListSource(batches, settings))

    def on_epoch_begin(self) -> None:
        """Nothing: a list does not change then."""

    def on_epoch_end(self) -> None:
        """Nothing, here either."""


class _ListSource(DataSource):
    """A list of batches, each yielded as it is."""

    name = "a list of batches"

    def __init__(self, batches: list[Any], settings: SourceContext) -> None:
        self.settings = settings
        self._batches = batches

    def begin(self) -> Iterator[Any]:
        return iter(self._batches[:])

    def position(self, *, live: bool) -> JSON:
        return {"kind": "list"}

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        last = self._batches[given - 1 : given] if given else ()
        return iter(self._batches[given:]), next(iter(last), None)

    def fingerprint(self) -> JSON:
        return {"kind": "list", "batches": len(self._batches)}
