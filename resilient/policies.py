"""When to save and what to keep, as small values that combine with ``|``.

    every(steps=500) | every(minutes=10)
    latest(3) | best(1, monitor="val_loss")

Policies are pure: time and progress are arguments, nothing here reads a clock, a
disk or a model. A policy that could never mean anything is refused when it is made,
not at the first save.
"""

import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from resilient.errors import describe
from resilient.progress import Progress

Mode = Literal["auto", "min", "max"]

# Endings of metric names whose direction nobody disputes. Similarities are missing on
# purpose: Keras has cosine_similarity both as a metric (more is better) and a loss.
_MORE_IS_BETTER = re.compile(
    r"(^|_)(acc|accuracy|auc|precision|recall|sensitivity|specificity|f1|f1_score|"
    r"fbeta_score|r2|r2_score|iou|io_u|dice)(_\d+)?$"
)
_LESS_IS_BETTER = re.compile(
    r"(^|_)(loss|error|mse|mae|rmse|mape|msle|crossentropy|divergence|hinge|poisson|"
    r"logcosh|perplexity)(_\d+)?$"
)


@dataclass(frozen=True)
class SavePolicy:
    """When to save: due as soon as any of its intervals is over.

    Attributes:
        epochs: Intervals counted in whole epochs; not empty means that the policy
            saves at epochs' ends.
        steps: Intervals counted in batches since the start of the run.
        seconds: Time since the last save, or None.
    """

    epochs: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    seconds: float | None = None

    def __or__(self, other: "SavePolicy") -> "SavePolicy":
        if not isinstance(other, SavePolicy):
            return NotImplemented
        times = [t for t in (self.seconds, other.seconds) if t is not None]
        return SavePolicy(
            epochs=tuple(sorted({*self.epochs, *other.epochs})),
            steps=tuple(sorted({*self.steps, *other.steps})),
            seconds=min(times, default=None),
        )

    def due(
        self, now: float, progress: Progress, last_now: float, last: Progress
    ) -> bool:
        """Whether to save at ``progress``.

        A multiple of an interval counts when it lies after the last save, up to and
        including now: ``steps_per_execution`` may jump over the multiple itself.

        Args:
            now: Seconds on any clock that does not go back.
            progress: Where the run is.
            last_now: The same clock at the last save, or when the attempt began.
            last: Progress at the last save, or where the attempt began.
        """
        if progress.step == last.step and progress.epoch == last.epoch:
            return False
        # Asked after every batch: no generators.
        for n in self.steps:
            if progress.step // n > last.step // n:
                return True
        if progress.batch == 0:  # at an epoch's end
            for n in self.epochs:
                if progress.epoch // n > last.epoch // n:
                    return True
        return self.seconds is not None and now - last_now >= self.seconds


def every(
    *,
    epochs: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    minutes: float | None = None,
) -> SavePolicy:
    """Save at regular intervals; with several, whenever any of them is over.

    Args:
        epochs: At the end of every so many epochs, validation included.
        steps: Every so many training batches.
        seconds: When so much time went by since the last save.
        minutes: The same in minutes.

    Raises:
        TypeError: If an interval is of the wrong type.
        ValueError: If there is no interval, or one is not positive.
    """
    if all(value is None for value in (epochs, steps, seconds, minutes)):
        raise ValueError(
            describe(
                "`every` needs an interval.",
                "every()",
                "Give one or more of epochs=, steps=, seconds= and minutes=.",
            )
        )
    policy = SavePolicy()
    if epochs is not None:
        policy |= SavePolicy(epochs=(_count(epochs, "every(epochs=...)"),))
    if steps is not None:
        policy |= SavePolicy(steps=(_count(steps, "every(steps=...)"),))
    if seconds is not None:
        policy |= SavePolicy(seconds=_duration(seconds, "every(seconds=...)"))
    if minutes is not None:
        policy |= SavePolicy(seconds=60 * _duration(minutes, "every(minutes=...)"))
    return policy


def save_policy(value: str | int | SavePolicy) -> SavePolicy:
    """Read ``save_freq``: ``"epoch"``, a number of batches, or a policy."""
    if isinstance(value, SavePolicy):
        return value
    if value == "epoch":
        return every(epochs=1)
    if not isinstance(value, str):
        return every(steps=_count(value, "save_freq"))
    raise ValueError(
        describe(
            "This `save_freq` has no meaning.",
            repr(value),
            'Use "epoch", a number of batches, or a policy such as every(minutes=10).',
        )
    )


class HasMetrics(Protocol):
    """What a keep policy needs to know of a checkpoint."""

    @property
    def step(self) -> int:
        """Batches since the start of the run."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The logs it was saved with."""


@dataclass(frozen=True)
class Best:
    """The ``n`` checkpoints with the best ``monitor``; part of a keep policy."""

    n: int
    monitor: str
    mode: Literal["min", "max"]

    def select(self, checkpoints: Iterable[HasMetrics]) -> set[int]:
        """Steps of the best; of equals the earlier, as Keras's ModelCheckpoint."""
        sign = 1 if self.mode == "min" else -1
        ranked = sorted(
            (sign * value, checkpoint.step)
            for checkpoint in checkpoints
            if not math.isnan(value := checkpoint.metrics.get(self.monitor, math.nan))
        )
        return {step for _, step in ranked[: self.n]}


@dataclass(frozen=True)
class KeepPolicy:
    """What to keep: the union of its parts, and always the newest checkpoint.

    Attributes:
        newest: How many of the newest to keep.
        bests: Which of the best to keep besides.
    """

    newest: int = 1
    bests: tuple[Best, ...] = ()

    def __or__(self, other: "KeepPolicy") -> "KeepPolicy":
        if not isinstance(other, KeepPolicy):
            return NotImplemented
        bests = tuple(dict.fromkeys(self.bests + other.bests))
        return KeepPolicy(max(self.newest, other.newest), bests)

    @property
    def monitors(self) -> frozenset[str]:
        """Names of the metrics it looks at."""
        return frozenset(best.monitor for best in self.bests)

    def select(self, checkpoints: Iterable[HasMetrics]) -> set[int]:
        """Steps of the checkpoints to keep."""
        present = list(checkpoints)
        newest = sorted(checkpoint.step for checkpoint in present)[-self.newest :]
        return set(newest).union(*(best.select(present) for best in self.bests))


def latest(n: int) -> KeepPolicy:
    """Keep the ``n`` newest checkpoints."""
    return KeepPolicy(_count(n, "latest(...)"))


def best(n: int, monitor: str, mode: Mode = "auto") -> KeepPolicy:
    """Keep the ``n`` checkpoints with the best value of a logged metric.

    Only checkpoints that carry the metric take part, and a NaN never wins. The newest
    checkpoint is kept as well.

    Args:
        n: How many.
        monitor: Name of the metric as in ``History``, such as ``"val_loss"``.
        mode: ``"min"`` or ``"max"``; ``"auto"`` goes by the name of the metric.

    Raises:
        TypeError: If ``n`` is no whole number or ``monitor`` no string.
        ValueError: If ``n`` is not positive, or the mode is unknown or unclear.
    """
    if not isinstance(monitor, str):
        raise TypeError(
            describe(
                "`monitor` is the name of a metric.",
                repr(monitor),
                'Name a metric that `fit` logs, such as monitor="val_loss".',
            )
        )
    if mode == "auto":
        mode = _direction(monitor)
    if mode not in ("min", "max"):
        raise ValueError(
            describe(
                "This `mode` has no meaning.",
                repr(mode),
                'Use "min", "max" or "auto".',
            )
        )
    return KeepPolicy(bests=(Best(_count(n, "best(...)"), monitor, mode),))


def keep_policy(value: int | KeepPolicy) -> KeepPolicy:
    """Read ``keep``: a number of checkpoints, or a policy."""
    return value if isinstance(value, KeepPolicy) else latest(_count(value, "keep"))


def _direction(monitor: str) -> Literal["min", "max"]:
    # Keras numbers repeated metrics: "auc_1" is still an auc.
    if _MORE_IS_BETTER.search(monitor.lower()):
        return "max"
    if _LESS_IS_BETTER.search(monitor.lower()):
        return "min"
    raise ValueError(
        describe(
            "The name of this metric does not say whether more or less is better.",
            f"monitor={monitor!r}",
            'Say so: mode="min" or mode="max".',
        )
    )


_Number = TypeVar("_Number", int, float)


def _positive(value: _Number, where: str) -> _Number:
    if not 0 < value < math.inf:
        raise ValueError(
            describe(f"{where} needs a positive number.", value, "Use 1 or more.")
        )
    return value


def _count(value: object, where: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return _positive(operator.index(value), where)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            describe(
                f"{where} needs a whole number.",
                f"{value!r} of type {type(value).__name__}",
                "Use an int of 1 or more, or a policy where one is accepted.",
            )
        ) from None


def _duration(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            describe(
                f"{where} needs a number.",
                f"{value!r} of type {type(value).__name__}",
                "Use an int or a float greater than 0.",
            )
        )
    return _positive(float(value), where)
