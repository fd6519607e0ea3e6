"""Python generators: replayed from their beginning.

A generator cannot be copied and has no position. So its batches are counted, and a
resumed run draws as many again, starting from the global random state before the first
one. Where others drew from the same generators in between, such as dropout, ``Draws``
has kept the states. If the generator differs each time, the last batch differs, and
that is an error.

One generator lives across epochs, and Keras begins every iterator with the two batches
that it peeked at: ``chain(first two, the rest of the generator)``. A loop gets any
batches as they are, and nothing is drawn before it asks for them.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from resilient import keras_internals
from resilient.data.draws import MOST, Draws
from resilient.data.source import DataSource, SourceContext, skip
from resilient.data.tracked import TrackedAdapter, TrackedIterable
from resilient.errors import DataNotResumableError, WarnOnce
from resilient.serialization import JSON
from resilient.serialization.batches import checksum
from resilient.serialization.rng import global_generators
from resilient.state.rng import capture, kept_random_state, restore

_KIND = "generator"


class PythonData(TrackedAdapter, keras_internals.GeneratorDataAdapter):  # type: ignore[misc]
    """Keras's adapter for generators, around any source of batches in Python."""

    generator: Callable[[], Any]

    def __init__(self, batches: Iterator[Any], source: "PythonSource") -> None:
        self._source = source
        self.tracked = TrackedIterable(source)
        if source.settings.as_given:
            return
        super().__init__(source.noting_first(batches))  # draws the first two batches
        # Keras's version would keep that iterator alive.
        self.generator = lambda: self.tracked

    @property
    def num_batches(self) -> int | None:
        return self._source.size

    def before_iterator(self) -> None:
        self._source.building = False

    def get_tf_dataset(self) -> Any:
        dataset = super().get_tf_dataset()
        if self._source.settings.argument != "validation_data":
            return dataset
        # Keras begins a new iterator for each evaluation. Batches prefetched for the
        # previous one are lost; how many is up to chance.
        import tensorflow as tf

        (exact,) = dataset._inputs()
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        return exact.with_options(options)


class GeneratorData(PythonData):
    """A Python generator as input."""

    def __init__(self, generator: Iterator[Any], *, settings: SourceContext) -> None:
        source = GeneratorSource(generator, settings)
        with source.with_initial_random_state():
            super().__init__(source.draws, source)


class PythonSource(DataSource):
    """A source from which Keras draws two batches before it trains.

    Attributes:
        building: Whether iterators only serve to build the model.
        size: Batches per epoch, if known.
    """

    building: bool
    size: int | None = None

    def __init__(self, settings: SourceContext) -> None:
        self.settings = settings
        self.first: list[Any] = []  # those two

    def noting_first(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches; Keras draws the first one here."""
        for batch in batches:
            self.first.append(batch)
            yield batch


class GeneratorSource(PythonSource):
    """A generator, and how many batches were drawn from it."""

    name = "a Python generator"

    def __init__(self, generator: Iterator[Any], settings: SourceContext) -> None:
        super().__init__(settings)
        self.count, self.ended, self.last = 0, False, None  # of the batches drawn
        self.building = settings.argument == "x"
        position = settings.saved.source if settings.saved else {}
        known = position.get("kind") == _KIND
        if not known:  # for other data, the fingerprint says what differs
            position = {}
        self._origin: JSON | None = position.get("random")
        shared, draws = global_generators(), position.get("draws")
        self._watched = Draws(generator, shared, each=True, known=draws)
        self.draws = self._counting(self._watched)
        self._say = WarnOnce()
        self._waiting = known  # until we resume from that position
        self._after_first: JSON = {}

    def _counting(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.count += 1
            self.last = batch
            yield batch
        self.ended = True

    @contextlib.contextmanager
    def with_initial_random_state(self) -> Iterator[None]:
        """The random state in which the first batches were drawn."""
        backend = self.settings.backend
        if self._origin is None:
            self._origin = capture(backend)
            yield
            return
        with kept_random_state(backend):
            restore(backend, self._origin)
            yield
            self._after_first = capture(backend)

    def begin(self) -> Iterator[Any]:
        if self._waiting or self.building:
            # Keras builds the model with this one, and its effects are undone. Under a
            # strategy, TensorFlow prefetches an arbitrary number of batches, and drops
            # them.
            return itertools.cycle(self.first)
        return itertools.chain(self.first, self.draws)

    def position(self, *, live: bool) -> JSON:
        if not self._watched.is_complete:
            self._say(
                f"a generator drew from global random generators more than {MOST:,} "
                "times after others had drawn from them, so resumes from now on will "
                "be refused (give the data a generator of its own: "
                "DataLoader(..., generator=torch.Generator()), "
                "numpy.random.default_rng(seed))",
                [self.argument],
            )
        return {
            "kind": _KIND,
            "random": self._origin,
            "drawn": self.count,
            "ended": self.ended,
            "last": checksum(self.last),
            "draws": self._watched.position(),
        }

    def resume(self, position: JSON) -> None:
        # Even if the run is over: the script may draw from the generator afterwards.
        if self._waiting:
            self._waiting = False
            self._catch_up(position)

    def seek(self, position: JSON, given: int) -> tuple[Iterator[Any], Any]:
        # Resuming has verified the last batch.
        return itertools.chain(self.first[given:], self.draws), None

    def _catch_up(self, position: JSON) -> None:
        """Draw the batches before the position again."""
        count, backend = position["drawn"], self.settings.backend
        with kept_random_state(backend):
            restore(backend, self._after_first)
            skip(self.draws, count - self.count, self)
            goes_on = position["ended"] and next(self.draws, None) is not None
            if self.count > count or goes_on:
                raise DataNotResumableError(
                    "The generator yields more batches than before: it changed, or is "
                    "not the same each time it is iterated.",
                    received=f"{self.argument}: more than {count:,} batches",
                    hint="Use the same generator as before, or start over with "
                    'resume="never".',
                )
        self.verify(self.last, count, position["last"])

    def fingerprint(self) -> JSON:
        return {"kind": _KIND}
