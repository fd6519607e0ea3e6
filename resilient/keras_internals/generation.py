"""What one generation of Keras does in a way of its own: the questions.

The answers are in ``keras_3_12`` and ``keras_3_16``. Nothing else asks for a version.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Generation(Protocol):
    """Releases of Keras that are built alike.

    Attributes:
        expected: What they mention beside what all generations do, see ``expected``.
        orders: What orders of arrays are drawn from, in words.
        trains_on_ranks: Whether it trains one model on several ranks of torch.
        traces_shapes: Whether TensorFlow traces a step for the shapes of a batch, see
            ``traces``.
    """

    expected: Mapping[str, tuple[str, ...]]
    orders: str
    trains_on_ranks: bool
    traces_shapes: bool

    def order(self, adapter: Any, random_state: Callable[[], Any]) -> Any:
        """What the next order of the adapter's batches is drawn from.

        Args:
            adapter: For arrays.
            random_state: Returns the state that its backend draws orders from.
        """

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

    def shuffle(self, indices: list[int], adapter: Any) -> None:
        """Shuffle the batches of a ``PyDataset`` as its adapter does."""

    def share(self, adapter: Any) -> slice:
        """Which of the batches of a ``PyDataset`` this process trains on."""

    def epochs(self, adapter: Any) -> int:
        """The epochs that an adapter counted."""

    def set_epochs(self, adapter: Any, epochs: int) -> None:
        """Let an adapter have counted so many epochs."""

    def draws_in_step(self, steps_per_execution: int) -> int:
        """How often a training step draws from its iterator."""

    def in_steps(self, batches: Iterable[Any], steps: int | None) -> Iterable[Any]:
        """Batches as JAX's trainer draws them.

        Args:
            batches: One by one.
            steps: How many to stack; None where it draws one by one.
        """
