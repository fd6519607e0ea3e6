"""Keras 3.12 to 3.15: orders of data come from global random generators."""

import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any


class Keras312:
    """Its answers, see ``Generation``."""

    expected: Mapping[str, tuple[str, ...]] = {
        "ArrayDataAdapter._get_iterator": ("random",),
        "ArrayDataAdapter.get_torch_dataloader": ("RandomSampler",),
        "PyDatasetAdapter._finite_generator": ("random",),
        "OrderedEnqueuer._run": ("random",),
    }

    orders = "the state of a random generator"
    traces_shapes = False
    trains_on_ranks = False

    def order(self, adapter: Any, random_state: Callable[[], Any]) -> Any:
        return random_state()

    def drawing_again(
        self,
        adapter: Any,
        order: Any,
        from_random_state: Callable[[Any], AbstractContextManager[None]],
    ) -> AbstractContextManager[None]:
        return from_random_state(order)

    def shuffle(self, indices: list[int], adapter: Any) -> None:
        random.shuffle(indices)

    def share(self, adapter: Any) -> slice:
        return slice(0, None, 1)

    def epochs(self, adapter: Any) -> int:
        return 0  # they do not count

    def set_epochs(self, adapter: Any, epochs: int) -> None:
        """Nothing to set."""

    def draws_in_step(self, steps_per_execution: int) -> int:
        return steps_per_execution

    def in_steps(self, batches: Iterable[Any], steps: int | None) -> Iterable[Any]:
        return batches
