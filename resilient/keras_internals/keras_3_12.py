"""What one generation of Keras does differently; here Keras 3.12 to 3.15.

The order of data comes from global random generators. A later generation is a subclass
that overrides what has changed. Nothing else checks a version.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any


class Keras312:
    """Keras releases that are built alike.

    Attributes:
        expected: What they mention beside what all generations do, see ``expected``.
        orders: The source of randomness for the order of arrays, in words.
        trains_on_ranks: Whether it trains one model on several torch ranks.
        traces_shapes: Whether TensorFlow traces a step for the shapes of a batch, see
            ``traces``.
    """

    expected: Mapping[str, tuple[str, ...]] = {
        "ArrayDataAdapter._get_iterator": ("random",),
        "ArrayDataAdapter.get_torch_dataloader": ("RandomSampler",),
        "PyDatasetAdapter._finite_generator": ("random",),
        "OrderedEnqueuer._run": ("random",),
    }
    orders = "the state of a random generator"
    trains_on_ranks = False
    traces_shapes = False

    def order(self, adapter: Any, random_state: Callable[[], Any]) -> Any:
        """What the next order of the adapter's batches is drawn from.

        Args:
            adapter: For arrays.
            random_state: Returns the state that its backend draws orders from.
        """
        return random_state()

    def drawing_again(
        self,
        adapter: Any,
        order: Any,
        from_random_state: Callable[[Any], AbstractContextManager[None]],
    ) -> AbstractContextManager[None]:
        """While an order is drawn from what ``order`` returned; leaves no trace.

        Args:
            adapter: For arrays.
            order: What to draw from.
            from_random_state: While the backend draws orders from such a state.
        """
        return from_random_state(order)

    def shuffle(self, indices: list[int], adapter: Any) -> None:
        """Shuffle the batches of a ``PyDataset`` as its adapter does."""
        random.shuffle(indices)

    def share(self, adapter: Any) -> slice:
        """Which of the batches of a ``PyDataset`` this process trains on."""
        return slice(0, None, 1)

    def epochs(self, adapter: Any) -> int:
        """The epochs that an adapter counted."""
        return 0  # they do not count epochs

    def set_epochs(self, adapter: Any, epochs: int) -> None:
        """Set the number of epochs that an adapter has counted."""

    def draws_in_step(self, steps_per_execution: int) -> int:
        """How often a training step draws from its iterator."""
        return steps_per_execution

    def in_steps(self, batches: Iterable[Any], steps: int | None) -> Iterable[Any]:
        """Batches as JAX's trainer draws them.

        Args:
            batches: One by one.
            steps: How many to stack; None if it draws one by one.
        """
        return batches
