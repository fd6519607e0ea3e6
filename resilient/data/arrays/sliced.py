"""Arrays that Python slices, as on JAX: redraws Keras's order from its random state.

Keras draws one permutation per epoch (``shuffle=True``) or one per batch
(``shuffle="batch"``). We save the random state that each is drawn from (before Keras
3.16, that of NumPy's global generator, see ``keras_internals.keras_3_12``), let Keras
redraw it in a resumed run, and slice from the requested batch: returning to a position
reads no data.

``SeekableArrays``, the part shared by all backends, holds the position that the next
iterator starts at and the fingerprint of the data: shapes, dtypes and checksums.
Arrays of up to ``FULL`` bytes are hashed whole; of a larger one, ``BLOCKS`` blocks
spread evenly from the first row to the last. Keras's own slicing reads the rows, so
every kind of array that ``fit`` takes is covered.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import xxhash

from resilient import keras_internals
from resilient.data import Positioned
from resilient.data.shard import ShardedData
from resilient.errors import DataNotResumableError
from resilient.serialization import JSON, rng
from resilient.serialization.position import DataPosition
from resilient.serialization.schema import taking

_NAMES = ("x", "y", "sample_weight")

FULL = 256 * 2**20  # bytes hashed whole; 9 GB/s, so well under 0.1 s
BLOCKS = 256


class SeekableArrays(Positioned, keras_internals.ArrayDataAdapter):  # type: ignore[misc]
    """Keras's array adapter, with a position.

    Subclasses say which global random state their backend draws orders from, if any.
    """

    _start: DataPosition | None = None
    _random_state: Callable[[], Any]
    _from_random_state: Callable[[Any], AbstractContextManager[None]]

    def __init__(
        self,
        *args: Any,
        shuffle: bool | str = False,
        share: ShardedData | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, shuffle=shuffle, **kwargs)
        self.shuffled = shuffle
        arrays = keras.tree.flatten(self._inputs)
        self.samples = int(next(x.shape[0] for x in arrays if x is not None))
        self._draw_seed = (share or ShardedData()).seed

    def position(self, drawn: int, *, held: bool) -> DataPosition:
        """The part of the position that all backends share."""
        return DataPosition(
            drawn=drawn,
            epochs=keras_internals.generation.epochs(self),
            source={"drawn_from": self._orders()},
        )

    def resume(self, position: DataPosition) -> None:
        keras_internals.generation.set_epochs(self, position.epochs)

    def seek(self, position: DataPosition) -> None:
        with taking("the position in the data"):
            theirs, ours = position.source["drawn_from"], self._orders()
        if position.source.get("order") is not None and theirs != ours:
            raise DataNotResumableError(
                "The order of the data in the interrupted epoch cannot be drawn "
                "again: it was drawn differently.",
                received=f"an order drawn from {theirs}, where Keras "
                f"{keras.__version__} draws it from {ours} now",
                hint=(
                    "Use the same Keras version and keras.distribution as the run "
                    "that saved, at least until the epoch ends; or start over with "
                    'resume="never".'
                ),
            )
        self._start = position

    def _orders(self) -> str:
        """The source of randomness for orders, in words."""
        return keras_internals.generation.orders

    def _take_start(self) -> DataPosition:
        """The position to start at, returned once; by default the first batch."""
        start, self._start = self._start, None
        return start or DataPosition(drawn=0, source={})

    def _next_order(self) -> Any:
        """What the next order will be drawn from; None without shuffling."""
        if not self.shuffled:
            return None
        return keras_internals.generation.order(self, self._random_state)

    def _drawing_again(self, order: Any) -> AbstractContextManager[None]:
        """Entered to draw an order from what ``_next_order`` returned."""
        if order is None:
            return nullcontext()
        again = keras_internals.generation.drawing_again
        return again(self, order, self._from_random_state)

    def fingerprint(self) -> JSON:
        inputs = self._inputs if isinstance(self._inputs, tuple) else (self._inputs,)
        arrays = {
            "/".join((_NAMES[path[0]], *map(str, path[1:]))): array_fingerprint(array)
            for path, array in keras.tree.flatten_with_path(inputs)
            if array is not None
        }
        return {
            "kind": "arrays",
            "samples": self.samples,
            "batch_size": int(self.batch_size),
            "shuffle": self.shuffled
            if self.shuffled == "batch"
            else bool(self.shuffled),
            **arrays,
        }


class SlicedArrays(SeekableArrays):
    """For batches that Keras slices in Python: on JAX, and DTensors on torch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._order: Any = None  # random state of the permutation in use
        self._draws: dict[int, Any] = {}  # batch -> what it is drawn from ("batch")
        self._started = 0

    def position(self, drawn: int, *, held: bool) -> DataPosition:
        found = super().position(drawn, held=held)
        if not drawn:
            return found
        ahead = [self._draws[i] for i in range(drawn, self._started) if self._draws]
        mine = {"order": self._order, "ahead": ahead}
        return replace(found, source=found.source | mine)

    def _get_iterator(
        self, slice_and_convert_fn: Callable[..., Any], inputs: Any
    ) -> Iterator[Any]:
        # A generator: as in Keras, all this happens when the first batch is requested.
        for rows in self._rows(super()._get_iterator(_only_rows, 0)):
            convert = functools.partial(slice_and_convert_fn, indices=rows)
            yield keras.tree.map_structure(convert, inputs, none_is_leaf=False)

    def _rows(self, keras_rows: Iterator[Any]) -> Iterator[Any]:
        """The rows of each batch from the start position, as Keras draws them."""
        start = self._take_start()
        first, ahead = start.drawn, list(start.source.get("ahead", ()))
        self._order, self._draws, self._started = start.source.get("order"), {}, first
        if first:
            with self._drawing_again(self._order):
                next(itertools.islice(keras_rows, first, first), None)
        else:
            self._order = self._next_order()
        by_batch = self.shuffled == "batch"
        for i in range(first, self.num_batches):
            drawing: AbstractContextManager[None] = nullcontext()
            if by_batch:
                kept = {k: v for k, v in self._draws.items() if k >= i - 1}
                if ahead:  # drawn before the kill; do not draw it again
                    order = ahead.pop(0)
                    drawing = self._drawing_again(order)
                else:
                    order = self._next_order()
                self._draws = {**kept, i: order}
            with drawing:
                rows = next(keras_rows)
            self._started = i + 1
            yield rows


class JaxArrays(SlicedArrays):
    """Array input of the JAX trainer."""

    _random_state = staticmethod(functools.partial(rng.state, rng.NUMPY))
    _from_random_state = staticmethod(functools.partial(rng.drawing_from, rng.NUMPY))


def _only_rows(_: Any, indices: Any) -> Any:
    return indices


def array_fingerprint(array: Any) -> dict[str, Any]:
    """Shape, dtype and checksum of one array-like input."""
    rows = int(array.shape[0])
    (source,) = keras_internals.convert_to_sliceable((array,), target_backend="numpy")

    def read(low: int, high: int) -> np.ndarray:
        return np.asarray(source.convert_to_numpy(source[slice(low, high)]))

    head = read(0, min(1, rows))
    row_bytes = max(1, head.nbytes)
    block = max(1, 2**20 // row_bytes)
    starts: Iterable[int] = range(0, rows, block)
    if rows * row_bytes > FULL:
        starts = sorted({int(i) for i in np.linspace(0, rows - 1, BLOCKS)})
    digest = xxhash.xxh3_128()
    for low in starts:
        digest.update(_bytes(read(low, min(low + block, rows))))
    return {
        "shape": [rows, *head.shape[1:]],
        "dtype": str(head.dtype),
        "xxh3_128": digest.hexdigest(),
    }


def _bytes(rows: np.ndarray) -> Any:
    if rows.dtype.hasobject:  # strings: their text, not their addresses
        return repr(rows.tolist()).encode()
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
