"""Callbacks and objects of a user, with every kind of value that a checkpoint keeps.

A checkpoint names these classes and functions, and where they are.
"""

import collections
import dataclasses
import enum
import random
from typing import Any, NamedTuple

import keras
import numpy as np


class Phase(enum.Enum):
    BEGUN = 1
    WARM = 2


class Best(NamedTuple):
    """The best batch, and its loss."""

    loss: float
    batch: int


@dataclasses.dataclass
class Limits:
    """What training may do."""

    rate: float
    batches: list[int]


def growing(rate: float) -> float:
    return rate * 1.01


def shrinking(rate: float) -> float:
    return rate * 0.99


class Kinds(keras.callbacks.Callback):
    """An attribute of each kind; all change with each batch, some act on training.

    Each has the class from the start that it has in the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.text = "none"
        self.raw = b""
        self.complex = 1j
        self.counts: dict[Any, Any] = {"all": 0, (1, 2): [0.0]}
        self.recent: collections.deque[float] = collections.deque([0.0], maxlen=3)
        self.seen: set[int] = {0}
        self.small = np.zeros(3, "float32")
        self.large = np.zeros(400)  # beyond what is kept inside of JSON
        self.number = np.int16(0)
        self.phase = Phase.BEGUN
        self.best = Best(float("inf"), -1)
        self.limits = Limits(0.01, [0])
        self.rules = (growing, shrinking)
        self.python = random.Random(3)
        self.numpy = np.random.default_rng(4)
        self.legacy = np.random.RandomState(5)
        self.total = keras.Variable(0.0, trainable=False)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = float(logs["loss"])
        drawn = self.python.random() + self.numpy.random() + self.legacy.rand()
        self.count += 1
        self.text = f"bätch {batch}"
        self.raw += bytes([batch])
        self.complex *= 1j
        self.counts["all"] += 1
        self.counts[1, 2].append(drawn)
        self.recent.append(loss)
        self.seen.add(batch)
        self.small += drawn
        self.large[self.count] = np.nan if batch == 3 else drawn
        self.number += np.int16(1)
        self.phase = Phase.WARM
        self.best = min(self.best, Best(loss, batch))
        self.limits.batches.append(batch)
        self.limits.rate = self.rules[0](self.limits.rate)
        self.rules = self.rules[::-1]
        self.total.assign_add(1.0)
        self.model.optimizer.learning_rate = self.limits.rate


class Asked(keras.callbacks.Callback):
    """Is asked for its state, and draws from the global generators."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn = [0.0]

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": np.array(self._drawn), "last": self._drawn[-1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["last"] == state["drawn"][-1]
        self._drawn = state["drawn"].tolist()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        draws = random.random(), np.random.rand(), float(keras.random.uniform(()))
        self._drawn.append(sum(draws))


class Budget:
    """No callback: passed as ``stateful=``, or to ``Run`` by name."""

    def __init__(self) -> None:
        self.spent = {"batches": 0, "parts": np.zeros(3)}

    def state_dict(self) -> dict[str, Any]:
        return self.spent

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.spent = state

    def spend(self, part: int) -> None:
        parts = self.spent["parts"].copy()
        parts[part % 3] += 1 / 3
        self.spent = {"batches": self.spent["batches"] + 1, "parts": parts}


class Spends(keras.callbacks.Callback):
    """Changes the ``Budget``."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._budget.spend(batch)
