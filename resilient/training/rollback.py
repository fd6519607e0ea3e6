"""Detects a loss that is not finite or far above the usual, and rolls the run back.

Keras logs the running mean of an epoch, which hides a spike: the loss of a batch is
recovered from two of these means. The result depends only on the losses, never on when
they are checked, so a repeated run detects the same.

Which batches a run skips is part of its history, kept in ``rollbacks.json`` in the
checkpoint directory: an attempt that trains these steps again skips the same batches.
Every checkpoint after the first skipped batch was made without it, since the others are
moved away before the rollback is recorded.
"""

import contextlib
import json
import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from resilient.display import in_ipython
from resilient.distributed.group import ALONE, Group
from resilient.errors import (
    CorruptCheckpointError,
    DivergedError,
    NotSupportedError,
    RolledBack,
    ScriptRolledBack,
)
from resilient.progress import Progress
from resilient.serialization import JSON
from resilient.serialization.schema import (
    Count,
    SavedLosses,
    SchemaError,
    from_json,
    parse,
    to_json,
)
from resilient.storage.files import (
    JSON_BYTES,
    read_file,
    replace_file,
    require_readable,
    sync,
)
from resilient.storage.layout import ROLLBACKS
from resilient.storage.refusals import unwritable
from resilient.storage.store import Store
from resilient.training.options import Rollback

_WINDOW = 100  # batches; a spike is compared with their median
_FEWEST = 20  # batches needed before anything counts as a spike
_WRITABLE = "Make room, or make the directory writable, and run again."


@dataclass(frozen=True)
class Bad:
    """A batch whose loss is bad.

    Attributes:
        step: Its number since the start of the run, from 0.
        value: Its loss.
        why: What is wrong with it.
        batches: How many were trained in this step, of which it is the last; Keras
            reports one loss for all of them.
    """

    step: int
    value: float
    why: str
    batches: int = 1


class Diverged(BaseException):
    """Ends Keras's ``fit`` from inside, past any ``except Exception``."""

    def __init__(self, bad: Bad) -> None:
        super().__init__(bad)
        self.bad = bad


class LossWatch:
    """Checks the loss of every trained batch.

    Args:
        spike: A loss is bad above this many times the median of the last 100; None:
            only if it is not finite.
        active: Whether losses are checked at all.
        group: The processes that train; the mean of their losses counts.
    """

    def __init__(
        self, spike: float | None, *, active: bool, group: Group = ALONE
    ) -> None:
        self.active = active
        self._group = group
        self._spike = spike
        self._pending: deque[tuple[int, int, Any]] = deque()
        self._batches = 0  # checked batches of this epoch
        self._mean = 0.0  # of their losses
        self._good: deque[float] = deque(maxlen=_WINDOW)

    def begin_epoch(self) -> None:
        """Keras's mean starts over."""
        self._pending.clear()
        self._batches, self._mean = 0, 0.0

    def note(self, step: int, batches: int, logs: Mapping[str, Any] | None) -> None:
        """Note trained batches; the device may still be busy, so nothing is read.

        Args:
            step: Number of the last one since the start of the run, from 0.
            batches: How many.
            logs: What Keras logged.

        Raises:
            NotSupportedError: The logs have no loss.
        """
        if not logs or "loss" not in logs:
            raise NotSupportedError(
                "The losses cannot be checked: this model's training step logs no "
                "loss.",
                received=f"logs of {sorted(logs or ())}",
                hint='Return a "loss" from train_step, or pass on_nan="ignore".',
            )
        self._pending.append((step, batches, logs["loss"]))

    def check(self, *, all_of_them: bool) -> None:
        """Check the batches noted.

        Args:
            all_of_them: Wait for the device if necessary; otherwise leave the last
                batch for the next time.

        Raises:
            Diverged: One of them is bad.
        """
        while len(self._pending) > (0 if all_of_them else 1):
            step, batches, loss = self._pending.popleft()
            losses = self._group.gather("loss", float(loss))
            found = self._judged(batches, losses) if losses else None
            found = self._group.broadcast("bad", found)
            if found is not None:
                mean, why = found
                raise Diverged(Bad(step, mean, why, batches))

    def _judged(self, batches: int, losses: list[float]) -> tuple[float, str] | None:
        """The loss of some batches, and what is wrong with it, if anything."""
        mean = losses[0] if len(losses) == 1 else statistics.fmean(losses)
        if not math.isfinite(mean):
            return mean, "the loss is not finite"
        if self._spike is None:
            return None
        total = self._batches + batches
        loss = (mean * total - self._mean * self._batches) / batches
        self._batches, self._mean = total, mean
        if len(self._good) >= _FEWEST:
            usual = statistics.median(self._good)
            if loss > self._spike * usual > 0:
                why = f"the loss is {loss / usual:.3g} times the usual {usual:.3g}"
                return loss, why
        self._good.append(loss)
        return None

    def state(self) -> JSON:
        """What it has seen so far, as JSON."""
        return to_json(SavedLosses(self._batches, self._mean, list(self._good)))

    def restore(self, state: JSON) -> None:
        """Set what ``state`` returned."""
        seen = from_json(SavedLosses, state)
        self._pending.clear()
        self._batches, self._mean = seen.batches, seen.mean
        self._good = deque(seen.good, maxlen=_WINDOW)


@dataclass(frozen=True)
class Skip:
    """One rollback.

    Attributes:
        start: Step of the first skipped batch.
        stop: Step of the first batch after it that is trained.
        bad: Step of the batch whose loss was bad.
        why: What was wrong with it.
    """

    start: Count
    stop: Count
    bad: Count
    why: Annotated[str, Meta(max_length=1000)]

    def __post_init__(self) -> None:
        if self.start >= self.stop:
            raise ValueError("`stop` is not after `start`")

    @classmethod
    def over(cls, bad: Bad, how: Rollback) -> "Skip":
        """The batches to skip in order to get over a bad one."""
        # Batches trained in one step are skipped together, if the first one is.
        start = max(0, bad.step - max(how.steps, bad.batches - 1))
        return cls(start, start + how.skip, bad.step, f"{bad.why} ({bad.value})")


_Skips = Annotated[list[Skip], Meta(max_length=100_000)]


def read(directory: Path) -> list[Skip]:
    """The rollbacks of a run so far, in order.

    Raises:
        CorruptCheckpointError: The file is damaged.
        CheckpointReadError: It cannot be read right now.
    """
    try:
        raw = read_file(directory, ROLLBACKS, JSON_BYTES)
        return from_json(_Skips, parse(raw))
    except FileNotFoundError:
        return []
    except (OSError, SchemaError) as error:
        if isinstance(error, OSError):
            require_readable(error)
        raise CorruptCheckpointError(
            "The list of batches that this run skips cannot be read, so it cannot "
            "resume exactly.",
            received=f"{directory / ROLLBACKS}: {error}",
            hint='Restore that file, or pass resume="never" to start from scratch.',
        ) from error


def write(directory: Path, skips: list[Skip]) -> None:
    """Write the rollbacks to disk.

    Raises:
        CheckpointWriteError: The file system failed.
    """
    text = json.dumps([asdict(skip) for skip in skips], indent=1)
    with unwritable("The rollback cannot be recorded", hint=_WRITABLE):
        replace_file(directory / ROLLBACKS, f"{text}\n".encode())


def forget(directory: Path) -> None:
    """A run starts over: nothing is skipped any more.

    Raises:
        CheckpointWriteError: The file system failed.
    """
    with unwritable("The rollbacks cannot be deleted", hint=_WRITABLE):
        (directory / ROLLBACKS).unlink(missing_ok=True)
        sync(directory)


def leave_out(
    skips: Sequence[Skip], first: int, begin: int, end: int, length: int | None
) -> bool:
    """Whether these batches of an epoch, trained in one step, are skipped.

    One batch at the end of an epoch is always trained, or Keras would have no logs: the
    last one, or the one before if the last is the bad one.

    Args:
        skips: The rollbacks of the run.
        first: Step at which the epoch began.
        begin: Number of the first batch in the epoch.
        end: Number of the last batch.
        length: Batches of the epoch; None if not known yet.
    """
    if not any(skip.start <= first + begin < skip.stop for skip in skips):
        return False
    if length is None:
        return True
    bad = {skip.bad for skip in skips}
    if end + 1 >= length:
        return begin > 0 and any(first + i in bad for i in range(begin, end + 1))
    after = range(end + 1, 2 * end - begin + 2)
    return not (after.stop >= length and any(first + i in bad for i in after))


def obstacle(store: Store, how: Rollback, bad: Bad) -> str:
    """Why a run cannot be rolled back; empty if it can."""
    skips, skip = read(store.directory), Skip.over(bad, how)
    if len(skips) >= how.limit:
        return f"The run has already been rolled back {len(skips)} times ({ROLLBACKS})."
    if not any(step <= skip.start for step in store.steps()):
        return f"There is no checkpoint at or before step {skip.start:,} to go back to."
    return ""


def turn_back(store: Store, how: Rollback, bad: Bad) -> Skip:
    """Roll a run back to before a bad batch, and skip the batches around it."""
    skip = Skip.over(bad, how)
    store.discard_after(skip.start)
    write(store.directory, [*read(store.directory), skip])
    return skip


def diverged(bad: Bad, why_stop: str) -> DivergedError:
    """The error for a run that cannot get over a bad batch."""
    return DivergedError(
        f"Training diverged at batch {bad.step:,} of the run: {bad.why}. "
        f"{why_stop}".rstrip(),
        received=f"loss {bad.value}",
        hint="Change the learning rate, clip gradients, inspect that batch, or "
        "resume from an earlier step with resume=<step>.",
    )


@contextlib.contextmanager
def end_told(group: Group) -> Iterator[None]:
    """Tell the other processes how fit ends after a bad batch."""
    try:
        yield
    except DivergedError as end:
        group.broadcast("bad end", {"diverged": str(end)})
        raise
    except RolledBack as end:
        group.broadcast("bad end", {"progress": end.progress._asdict()})
        raise


def end_that_was_told(said: Mapping[str, Any]) -> DivergedError | RolledBack:
    """End the same way in another process."""
    if "diverged" in said:
        return DivergedError(said["diverged"])
    return rolled_back(Progress(**said["progress"]))


def rolled_back(progress: Progress) -> RolledBack:
    """The end of a fit that continues in another process, at ``progress``."""
    # IPython would exit on SystemExit.
    return RolledBack(progress) if in_ipython() else ScriptRolledBack(progress)


def leads_nowhere() -> NotSupportedError:
    """The error for skipping batches at the end of an epoch of unknown length."""
    return NotSupportedError(
        "The batches to skip after a rollback reach the end of the first epoch, "
        "whose length is not known yet.",
        received="data of unknown length",
        hint="Pass steps_per_epoch, or a smaller Rollback(skip=...).",
    )
