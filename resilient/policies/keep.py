"""Which checkpoints to keep.

latest(3) | best(1, monitor="val_loss") | one_per(hours=6)
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from resilient.errors import message, require_integer, require_number

Mode = Literal["auto", "min", "max"]

# Endings of metric names whose direction is clear. Similarities are left out on
# purpose: Keras's cosine_similarity is both a metric (higher is better) and a loss.
_MORE = re.compile(
    r"(^|_)(acc|accuracy|auc|precision|recall|sensitivity|specificity|f1|f1_score|"
    r"fbeta_score|r2|r2_score|iou|io_u|dice)(_\d+)?$"
)
_LESS = re.compile(
    r"(^|_)(loss|error|mse|mae|rmse|mape|msle|crossentropy|divergence|hinge|poisson|"
    r"logcosh|perplexity)(_\d+)?$"
)


class HasMetrics(Protocol):
    """What a keep policy needs to know about a checkpoint."""

    @property
    def step(self) -> int:
        """Batches since the start of the run."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The logs saved with it."""

    @property
    def created(self) -> str:
        """When it was committed, ISO 8601."""


@dataclass(frozen=True)
class Best:
    """The ``n`` checkpoints with the best ``monitor``; part of a keep policy."""

    n: int
    monitor: str
    mode: Literal["min", "max"]

    def select(self, checkpoints: Iterable[HasMetrics]) -> set[int]:
        """Steps of the best; the earlier of a tie, as in Keras's ModelCheckpoint."""
        sign = 1 if self.mode == "min" else -1
        ranked = sorted(
            (sign * value, checkpoint.step)
            for checkpoint in checkpoints
            if not math.isnan(value := checkpoint.metrics.get(self.monitor, math.nan))
        )
        return {step for _, step in ranked[: self.n]}


@dataclass(frozen=True)
class KeepPolicy:
    """What to keep: the union of its parts, plus always the newest checkpoint.

    Attributes:
        newest: How many of the newest checkpoints to keep.
        bests: Which of the best checkpoints to keep.
        back: Unless 0, also keep the newest checkpoint that is at least this many steps
            older than the newest one, and the checkpoint after it, which will take its
            place.
        hours: Unless None, keep one checkpoint per interval of this many hours.
    """

    newest: int = 1
    bests: tuple[Best, ...] = ()
    back: int = 0
    hours: float | None = None

    def __or__(self, other: "KeepPolicy") -> "KeepPolicy":
        if not isinstance(other, KeepPolicy):
            return NotImplemented
        bests = tuple(dict.fromkeys(self.bests + other.bests))
        back = max(self.back, other.back)
        hours = min((h for h in (self.hours, other.hours) if h), default=None)
        return KeepPolicy(max(self.newest, other.newest), bests, back, hours)

    @property
    def monitors(self) -> frozenset[str]:
        """Names of the metrics that it compares."""
        return frozenset(best.monitor for best in self.bests)

    def select(self, checkpoints: Iterable[HasMetrics]) -> set[int]:
        """Steps of the checkpoints to keep."""
        present = list(checkpoints)
        steps = sorted(checkpoint.step for checkpoint in present)
        kept = set(steps[-self.newest :])
        if self.back and steps:
            old = [step for step in steps if step <= steps[-1] - self.back]
            kept.update([*old[-1:], steps[len(old)]])
        if self.hours is not None:
            kept |= _one_per(present, 3600 * self.hours)
        return kept.union(*(best.select(present) for best in self.bests))


def latest(n: int) -> KeepPolicy:
    """Keep the ``n`` newest checkpoints."""
    return KeepPolicy(require_integer(n, "latest(...)"))


def one_per(*, hours: float) -> KeepPolicy:
    """Keep one checkpoint per interval of ``hours``, over the whole run.

    It keeps the first checkpoint, each one saved at least this long after the last one
    kept, and the newest.

    Args:
        hours: The shortest time between two of them.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is not positive.
    """
    return KeepPolicy(hours=require_number(hours, "one_per(hours=...)"))


def best(n: int, monitor: str, mode: Mode = "auto") -> KeepPolicy:
    """Keep the ``n`` checkpoints with the best value of a logged metric.

    Checkpoints without the metric are not compared, and NaN never wins. The newest
    checkpoint is always kept as well.

    Args:
        n: How many to keep.
        monitor: The metric's name in ``History``, such as ``"val_loss"``.
        mode: ``"min"`` or ``"max"``; ``"auto"`` infers it from the metric's name.

    Raises:
        TypeError: If ``n`` is not an integer.
        ValueError: If ``n`` is not positive, ``monitor`` is not a string, or the mode
            is unknown or cannot be inferred.
    """
    if mode == "auto":  # Keras numbers repeated metrics: "auc_1" is still an auc
        more, less = (each.search(f"{monitor}".lower()) for each in (_MORE, _LESS))
        mode = "max" if more else "min" if less else mode
    if not isinstance(monitor, str) or mode not in ("min", "max"):
        raise ValueError(
            message(
                "best(...) needs the name of a metric, and whether less or more of it "
                "is better.",
                received=f"monitor={monitor!r}, mode={mode!r}",
                hint='Pass mode="min" or mode="max" if the name does not say it.',
            )
        )
    return KeepPolicy(bests=(Best(require_integer(n, "best(...)"), monitor, mode),))


def keep_policy(value: int | KeepPolicy) -> KeepPolicy:
    """Read ``keep``: a number of checkpoints, or a policy."""
    if isinstance(value, KeepPolicy):
        return value
    or_else = ", or a policy such as latest(3) | best(1, monitor)"
    return latest(require_integer(value, "keep", or_else=or_else))


def _one_per(checkpoints: Iterable[HasMetrics], seconds: float) -> set[int]:
    """Steps to keep by time; a checkpoint once kept stays kept."""
    kept: dict[int, datetime] = {}
    for checkpoint in sorted(checkpoints, key=lambda each: each.step):
        time = datetime.fromisoformat(checkpoint.created)
        last = next(reversed(kept.values()), None)
        if last is None or (time - last).total_seconds() >= seconds:
            kept[checkpoint.step] = time
    return set(kept)


def unlogged(
    missing: set[str], logs: Mapping[str, float] | None, *, validates: bool
) -> ValueError | None:
    """The error to raise at the end of an epoch, if a metric can no longer be logged.

    Args:
        missing: Monitored metrics that no epoch has logged so far; the set is updated.
        logs: What the epoch logged; an epoch without logs proves nothing.
        validates: Whether a later epoch may be validated if this one was not.
    """
    missing.difference_update(logs or ())
    waits = validates and not any(name.startswith("val_") for name in logs or ())
    for name in sorted(missing):
        if logs and not (waits and name.startswith("val_")):
            return ValueError(
                message(
                    f'keep=best(...) monitors "{name}", which the epoch did not log.',
                    received=f"metrics {', '.join(logs)}",
                    hint="Name one of these, and run again.",
                )
            )
    return None
