"""Arrays on JAX: Keras's own order, drawn again from the same random state.

Keras draws one permutation per epoch (``shuffle=True``) or one per batch
(``shuffle="batch"``) from numpy's global generator. We keep the generator's state as
it was just before each draw that a resumed run has to repeat, repeat it, and slice
from the batch asked for: no data is read to get back to a position.

``SeekableArrays``, the part shared by all backends, holds the position that the next
iterator starts at and the fingerprint of the data.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from resilient import keras_internals
from resilient.data import JSON
from resilient.data.checksum import array_fingerprint
from resilient.data.share import Share
from resilient.random_state import numpy_generator, numpy_state

_NAMES = ("x", "y", "sample_weight")


class SeekableArrays(keras_internals.ArrayDataAdapter):  # type: ignore[misc]
    """Keras's array adapter, with a position."""

    _start: JSON | None = None

    def __init__(self, *args: Any, share: Share | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._draw_seed = (share or Share()).seed

    def resume(self, position: JSON) -> None:
        """Nothing outlasts an iterator."""

    def seek(self, position: JSON) -> None:
        self._start = position

    def prepare(self) -> None:
        """Nothing to do."""

    def made(self, iterable: Any) -> Any:
        return iterable

    def trained(self, drawn: int) -> None:
        """Nothing to forget."""

    def paused(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def _take_start(self) -> JSON:
        """The position to start at, once; an empty one where none was given."""
        start, self._start = self._start, None
        return start or {}

    def fingerprint(self) -> JSON:
        inputs = self._inputs if isinstance(self._inputs, tuple) else (self._inputs,)
        arrays = {
            "/".join((_NAMES[path[0]], *map(str, path[1:]))): array_fingerprint(array)
            for path, array in keras_internals.tree.flatten_with_path(inputs)
            if array is not None
        }
        return {
            "kind": "arrays",
            "samples": int(self._num_samples),
            "batch_size": int(self._batch_size),
            "shuffle": self._shuffle
            if self._shuffle == "batch"
            else bool(self._shuffle),
            **arrays,
        }


class JaxArrays(SeekableArrays):
    """Array input of the JAX trainer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._order: JSON | None = None  # state that drew the permutation in use
        self._draws: dict[int, JSON] = {}  # batch -> state that drew it ("batch")
        self._started = 0

    def position(self, drawn: int, *, held: bool) -> JSON:
        if not drawn:
            return {"drawn": 0}
        ahead = [self._draws[i] for i in range(drawn, self._started) if self._draws]
        return {"drawn": drawn, "order": self._order, "ahead": ahead}

    def _get_iterator(
        self, slice_and_convert_fn: Callable[..., Any], inputs: Any
    ) -> Iterator[Any]:
        # A generator: all this happens when the first batch is asked for, as in Keras.
        start = self._take_start()
        first = start.get("drawn", 0)
        ahead = list(start.get("ahead", ()))
        self._order, self._draws, self._started = None, {}, first
        permutation = None
        if self._shuffle and self._shuffle != "batch":
            self._order = start.get("order") or numpy_state()
            permutation = _drawn_from(self._order, self._num_samples, "order" in start)
        for i in range(first, self._size):
            low = i * self._batch_size
            high = min(low + self._batch_size, self._num_samples)
            indices: Any = slice(low, high)
            if permutation is not None:
                indices = permutation[low:high]
            elif self._shuffle == "batch":
                again = bool(ahead)
                state = ahead.pop(0) if again else numpy_state()
                self._draws = {k: v for k, v in self._draws.items() if k >= i - 1}
                self._draws[i] = state
                indices = _drawn_from(state, high - low, again) + low
            self._started = i + 1
            convert = functools.partial(slice_and_convert_fn, indices=indices)
            yield keras_internals.tree.map_structure(
                convert, inputs, none_is_leaf=False
            )


def _drawn_from(state: JSON, n: int, again: bool) -> np.ndarray:
    """A permutation of ``n``; ``again`` leaves numpy's generator as it was."""
    if not again:
        return np.random.permutation(n)
    return numpy_generator(state).permutation(n)
