"""Users' callbacks of the scenarios: each keeps state in its own way."""

import random
from typing import Any

import keras
import numpy as np


def plain(logs: dict[str, Any] | None) -> dict[str, float]:
    return {name: float(value) for name, value in (logs or {}).items()}


class Recorder(keras.callbacks.Callback):
    """Remembers all it sees in plain attributes, and draws from the global RNGs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.begun = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(("epoch begins", epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append((batch, plain(logs), random.random(), np.random.rand()))

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(("validation", batch, plain(logs)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append((epoch, plain(logs), np.random.randint(1000)))


class EpochRecorder(keras.callbacks.Callback):
    """Sees epochs only, so that Keras may dispatch batch hooks asynchronously."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append((epoch, plain(logs), random.random(), np.random.rand()))


class Plain(keras.callbacks.Callback):
    """Numbers, texts, arrays and containers in plain attributes; acts on training."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.best: float | None = None
        self.names: dict[str, list[int]] = {}
        self.total = np.zeros(3)
        self.seen: set[int] = set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = plain(logs)["loss"]
        self.count += 1
        self.best = loss if self.best is None else min(self.best, loss)
        self.names.setdefault(f"batch {batch % 3}", []).append(self.count)
        self.total = self.total + np.array([loss, self.count, np.random.rand()])
        self.seen.add(batch)
        if self.count % 4 == 0:
            rate = 0.01 * (1 + self.count % 3 + random.random())
            self.model.optimizer.learning_rate = rate


class StopAt(keras.callbacks.Callback):
    """Asks for an early stop in the middle of an epoch."""

    def __init__(self, epoch: int, batch: int) -> None:
        super().__init__()
        self.at = (epoch, batch)
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == self.at:
            self.model.stop_training = True


class Fading(keras.callbacks.Callback):
    """Changes attributes of a layer and of the optimizer, from what they are."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.get_layer("fading").rate *= 0.9
        self.model.optimizer.weight_decay *= 1.1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.clipnorm = 1.0 / (1 + epoch)


class Swapping(keras.callbacks.Callback):
    """Puts another optimizer in place of the script's, before training begins."""

    def on_train_begin(self, logs: Any = None) -> None:
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
        optimizer.build(self.model.trainable_variables)
        self.model.optimizer = optimizer
