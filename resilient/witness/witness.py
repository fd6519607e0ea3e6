"""Leaves words of each step, and says once whether a resume repeats them."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from resilient.backends.base import Part
from resilient.data import DataOptions
from resilient.distributed.group import Group
from resilient.errors import NotExactError, warn_not_exact
from resilient.storage.layout import witness_name
from resilient.telemetry.console import Notifier
from resilient.telemetry.events import Events, read_events
from resilient.witness import OnInexact, samples
from resilient.witness.ring import FIELDS, Entries, Field, Ring

logger = logging.getLogger(__name__)

_AFTER_SAVE = 4  # steps after each save that are digested whatever it costs
_RARELY = 200  # times its cost has to pass before the next digest: 0.5 %
_WAITS = 8  # steps for which a device may compute a digest
_DIFFERS = "the resumed run does not repeat the killed one"

_ROUNDING = 1e-5  # share of a loss by which sums in another order may differ


class Difference(NamedTuple):
    """The first step that differs.

    Attributes:
        step: The number of steps done.
        of: The first field that differs, in the order of a step.
        size: How far apart the first losses that differ are, as a share of the larger
            one; 0: no loss differs.
    """

    step: int
    of: Field
    size: float

    @property
    def is_rounding(self) -> bool:
        """Whether the losses are as close as sums in another order are."""
        return 0 < self.size < _ROUNDING


class Overlap:
    """The steps between a checkpoint and a kill.

    Args:
        begin: The step of the checkpoint.
        expected: What later steps left.

    Attributes:
        begin: The step of the checkpoint.
        last: The last of these steps.
    """

    def __init__(self, begin: int, expected: Entries) -> None:
        self._expected, self.begin = expected, begin
        self.last = max(expected, default=begin)
        self._found: Entries = {}
        self._different: set[int] = set()
        self._size = 0.0

    @property
    def compared(self) -> int:
        """How many steps were compared, those that are executed as one included."""
        steps = (at for at, found in self._found.items() if found.keys() - {"batch"})
        return max(steps, default=self.begin) - self.begin

    def has(self, step: int, field: Field) -> bool:
        """Whether there is something to compare."""
        return field in self._expected.get(step, ())

    def compare(self, step: int, field: Field, value: int) -> None:
        """Compare what ``has`` finds with its value now; from any thread."""
        expected = self._expected[step][field]
        self._found.setdefault(step, {})[field] = value
        if value != expected:
            if field == "loss":
                self._size = self._size or _apart(expected, value)
            self._different.add(step)

    def difference(self, *, settled: bool) -> Difference | None:
        """The first difference.

        Args:
            settled: Whether nothing more is coming; else a loss is waited for, which
                shows the size of a difference.
        """
        if not self._different:
            return None
        step = min(self._different.copy())
        expected, found = self._expected[step], self._found[step]
        of = next(f for f in FIELDS if f in found and found[f] != expected[f])
        awaited = "loss" in expected.keys() - found.keys()
        if not settled and (awaited or (of == "weights" and not self._size)):
            return None
        return Difference(step, of, self._size)


def _apart(one: int, other: int) -> float:
    """How far apart two losses are, by their bits."""
    pair = np.array([one, other], np.uint64).view(np.float64)
    with np.errstate(invalid="ignore"):
        apart = float(abs(pair[0] - pair[1]) / abs(pair).max())
    return apart if math.isfinite(apart) else 1.0


class Witness:
    """One process's witness, agreed on with the others.

    Args:
        directory: Local, where the words are kept.
        part: Must be the same for two attempts to be compared.
        peek: The backend's.
        group: The processes that train.
        events: Records what was found.
        data: What to do if the data is not as before.
        on_inexact: What to do if training does not repeat.
        say: Prints a line for the user.
        clock: In seconds.
    """

    def __init__(
        self,
        directory: Path,
        part: Part,
        peek: samples.Peek,
        group: Group,
        events: Events,
        *,
        data: DataOptions,
        on_inexact: OnInexact,
        say: Notifier,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._directory, self._group, self._events = directory, group, events
        self._data, self._on_inexact, self._say = data, on_inexact, say
        self._name = witness_name(group.index)
        self._part, self._peek = part, peek
        self._clock = clock
        self._ring: Ring | None = None
        # `_open`: until the processes agree that there is nothing more to compare.
        self._overlap, self._open = Overlap(0, {}), False
        self._done = self._logged = -1  # steps
        self._due, self._fresh, self._next, self._cost = False, 0, 0.0, 0.0
        self._batch: samples.Pending | None = None
        self._pending: list[tuple[int, Field, samples.Pending]] = []

    def begin(self, step: int, skips: Sequence[Any] = (), *, compares: bool) -> int:
        """An attempt begins after a step; how many batches may be compared.

        Args:
            step: Where training begins.
            skips: Which batches it leaves out: a kill may come amid a rollback.
            compares: Whether it continues the last attempt, with nothing changed.
        """
        self._ring = None
        key = xxhash.xxh3_64_intdigest(repr((self._part, *skips)).encode())
        try:
            args = self._directory, self._name, key, step
            self._ring = Ring(*args, continues=compares)
        except (OSError, ValueError) as error:
            logger.warning("Resumes of this attempt cannot be compared: %s", error)
        overlap = Overlap(step, self._ring.found if self._ring else {})
        lasts = self._group.gather("witness", overlap.last)
        last: Any = self._group.broadcast("witness", max(lasts, default=0))
        overlap.last, self._overlap = last, overlap
        self._open, self._done = last > step, step
        self._batch, self._pending = None, []
        self.saved()
        return int(last - step)

    def logged(self, step: int, logs: Mapping[str, Any]) -> None:
        """Numbers were logged for a step, in whatever thread computes them.

        "loss" counts, or the first with that in its name: others may be seconds.
        """
        loss = logs.get("loss")
        if loss is None:
            loss = next((logs[name] for name in logs if "loss" in str(name)), None)
        if loss is None or step == self._logged:
            return
        self._logged = step
        if isinstance(loss, float):  # as Keras logs it
            self._leave(step, "loss", samples.bits_of(loss))
        else:
            self._pending.append((step, "loss", samples.of_number(self._peek, loss)))

    def drawn(self, batch: Any) -> Any:
        """The batch, which is about to be trained."""
        if self._batch is None and (self._due or self._open):
            began = self._clock()
            self._batch = samples.of_batch(self._peek, batch)
            self._cost = self._clock() - began
        return batch

    def trained(
        self,
        step: int,
        leaves: Callable[[int], Sequence[Any]],
        settle: Callable[[], None],
    ) -> None:
        """A step is done, and the next one has not begun.

        Args:
            step: The number of steps done.
            leaves: The tensors to digest after a step.
            settle: Waits for what is being computed.

        Raises:
            DataNotResumableError, NotExactError: As in ``check``.
        """
        if step == self._done:  # at an epoch's end once more
            return
        self._done = step
        if not (self._due or self._open or self._pending):  # as after most steps
            self._due = self._clock() >= self._next
            return
        expected = self._open and self._overlap.has(step, "weights")
        alone = self._group.count == 1
        if expected or (alone and self._open and step > self._overlap.last):
            settle()
        began = self._clock()
        if self._batch is not None:
            self._pending.append((step, "batch", self._batch))
        if self._due or expected:
            digest = samples.of_leaves(self._peek, leaves(step))
            self._pending.append((step, "weights", digest))
        if self._pending:
            self._read(step)
        now = self._clock()
        if self._due:
            self._next = now + _RARELY * (now - began + self._cost)
            self._fresh -= 1
        self._batch, self._cost = None, 0.0
        self._due = self._fresh > 0 or now >= self._next
        if alone and self._open:
            self.check(step, settled=False)

    def saved(self) -> None:
        """A snapshot was taken: a resume trains the steps after it again."""
        self._fresh, self._due = _AFTER_SAVE, True

    def check(self, step: int, *, settled: bool = True) -> None:
        """Compare what is known so far; with several processes, all together.

        Args:
            step: The number of steps done.
            settled: Whether everything is known of them.

        Raises:
            DataNotResumableError: Another batch was trained.
            NotExactError: Training does not repeat, and is to end then.
        """
        overlap = self._overlap
        if not self._open:
            return
        within, settled = not settled, settled or step > overlap.last
        found = overlap.difference(settled=settled)
        mine = [found, overlap.compared, self._data.changed]
        every: Any = self._group.gather("witnessed", mine)
        first = min((tuple(each[0]) for each in every if each[0]), default=None)
        compared = min((each[1] for each in every), default=0)
        changed = any(each[2] for each in every)
        agreed: Any = self._group.broadcast("witnessed", [first, compared, changed])
        first, compared, changed = agreed
        if not (changed or first or (settled and step >= overlap.last)):
            return
        self._open = False
        if changed:  # the batches are other ones, which has been said
            self._forget(overlap.begin, overlap.last)
        elif first:
            self._differs(Difference(*first), overlap)
        elif compared:
            batches = f"{compared:,} batch{'es' * (compared != 1)}"
            line = f"The {batches} after step {overlap.begin:,} repeated bit for bit."
            self._events.emit("repeated", step=step, repeated=compared)
            self._say(line, within_epoch=within)

    def _forget(self, after: int, last: int) -> None:
        """Training goes on otherwise than the killed attempt did after a step."""
        if self._ring is not None:
            self._ring.forget(range(after + 1, last + 1))

    def _differs(self, found: Difference, overlap: Overlap) -> None:
        number, count = found.step - overlap.begin, overlap.last - overlap.begin
        where = f"batch {number:,} of the {count:,} that are trained again"
        known = any(read_events(self._directory, having=['"rounding": true']))
        why = f"{where}: other {found.of}"
        fields = {"step": found.step, "of": found.of, "size": found.size}
        fields |= {"rounding": found.is_rounding, "why": why, "repeated": number - 1}
        self._events.emit("not repeated", **fields)
        if found.of == "batch":
            self._data.refuse(
                "Other data is trained after the resume than before the kill: it "
                "changed, or is not the same each time it is iterated.",
                received=where,
                hint="Use the same data as before; seed every random generator in it.",
            )
        else:
            self._warn_or_raise(found, where, known=known)
        self._forget(found.step, overlap.last)

    def _warn_or_raise(self, found: Difference, where: str, *, known: bool) -> None:
        cause = "the script changed, or something that training changes is not saved"
        hint = (
            "Keep it in a keras.Variable, a callback's state_dict() or `stateful`; "
            "`resilient prove` finds the first step and leaf that differ."
        )
        if not found.size:
            what = "weights differ, and no loss shows by how much"
            cause += ", or the arithmetic does not repeat"
        elif found.is_rounding:
            what = f"the loss differs by {found.size:.0e} of itself"
            cause = "the arithmetic does not repeat, it seems"
            hint = (
                "Call resilient.deterministic() before you build the model; "
                "`resilient prove` shows whether training repeats without a kill."
            )
        else:
            what = f"the loss differs by {100 * found.size:.3g}%"
        if self._on_inexact == "raise":
            raise NotExactError(
                f"Not bit-exact: {_DIFFERS}: {what}: {cause}.",
                received=where,
                hint=hint,
            )
        if not (found.is_rounding and known):
            warn_not_exact(f"{_DIFFERS}: {what}", [where, f"{cause}. {hint}"])

    def _read(self, step: int) -> None:
        """Leave the digests that are computed by now."""
        waiting = []
        for at, field, digest in self._pending:
            value = digest()
            if value is not None:
                self._leave(at, field, value)
            elif at > step - _WAITS:
                waiting.append((at, field, digest))
        self._pending = waiting

    def _leave(self, step: int, field: Field, value: int) -> None:
        overlap = self._overlap if self._open else None
        if overlap is not None and overlap.has(step, field):
            overlap.compare(step, field, value)  # what was left stays, for another kill
        elif self._ring is not None and (overlap is None or step > overlap.last):
            self._ring.note(step, field, value)
