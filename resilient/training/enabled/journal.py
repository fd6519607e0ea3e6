"""``fits.json``: the calls of ``fit`` that a program has made, in their order.

It only ever makes an error of a call: which directory a call has follows from its
number and model, not from what is written here.
"""

import json
import logging
import os
import secrets
import sys
from pathlib import Path
from typing import Generic, TypeVar

from resilient.errors import (
    CheckpointMismatchError,
    CheckpointWriteError,
    NotSupportedError,
)
from resilient.serialization.schema import to_json
from resilient.storage import directories
from resilient.storage.files import replace_text
from resilient.storage.store import Store
from resilient.telemetry.heartbeat import VARIABLE
from resilient.training.enabled.far_journal import FarJournal
from resilient.training.enabled.fits_file import FITS, Call, Saved, read

logger = logging.getLogger(__name__)

T = TypeVar("T")


def has_finished(directory: Path) -> bool:
    """Whether the fit whose checkpoints are there has finished."""
    newest = next(reversed(Store(directory).checkpoints()), None)
    return newest is not None and newest.finished


class InOrder(Generic[T]):
    """What a program makes in the same order each time.

    Args:
        before: What is known of them, from the first on.
        unknown: Where nothing is.

    Attributes:
        known: The same now.
    """

    def __init__(self, before: list[T], unknown: T) -> None:
        self.known, self._unknown, self._count = list(before), unknown, 0

    def next(self) -> tuple[int, T]:
        """One is made: its number, from 1, and what is known of it."""
        self._count += 1
        self.known += [self._unknown] * (self._count - len(self.known))
        return self._count, self.known[self._count - 1]

    def put(self, number: int, what: T) -> None:
        """Know it from the next call of fit on: before that nothing depends on it."""
        self.known[number - 1] = what


class Journal:
    """The calls in a directory, which this process has locked.

    Args:
        directory: Where the file is.
        anew: Whether to forget the calls that were made before.
        again: Whether this process has made them, and not been interrupted.
        far: The file in an object store, if the fits are kept in one.

    Attributes:
        run: Names this run of the program, and those that go on with it.
        seeds: Of the oracles of searches.
        projects: Of their tuners.

    Raises:
        CheckpointReadError: The file cannot be read.
        CheckpointMismatchError: Another program made them.
        NotSupportedError: So did another process of the same ``resilient run``.
    """

    def __init__(
        self, directory: Path, *, anew: bool, again: bool, far: FarJournal | None = None
    ) -> None:
        self._far = far
        self._again, self._warned = again, False
        self._directory, self._program = directory, os.path.basename(sys.argv[0])
        # A new directory for each launch.
        self._launch = Path(os.environ.get(VARIABLE, "")).parent.name
        before = None if anew else read(directory)
        self._known = before is not None
        self._before = before.calls if before else []
        self._calls = list(self._before)
        self.run = (before and before.run) or secrets.token_hex(4)
        self.seeds = InOrder(before.seeds if before else [], 0)
        self.projects = InOrder(before.projects if before else [], "")
        if before is not None:
            self._require_same_program(before)

    def take(self, number: int, call: Call, directory: Path) -> None:
        """A call is made: the same as before with this number, or a new one.

        Args:
            number: Which call of the program it is, from 1.
            call: What it is.
            directory: Its checkpoints.

        Raises:
            CheckpointMismatchError: It is another one than before.
            CheckpointWriteError: The file cannot be written.
        """
        new = number > len(self._before)
        if not new:
            before = self._before[number - 1]
            if lines := self._differences(number, call, before):
                raise self._other_order(number, lines)
            self._warn_of_weights(number, call, before, directory)
        self._calls[number - 1 : number] = [call]
        saved = Saved(
            self._program,
            self._launch,
            os.getpid(),
            self._calls,
            self.run,
            self.seeds.known,
            self.projects.known,
        )
        text = json.dumps({**to_json(saved), "calls": list(map(to_json, saved.calls))})
        try:
            if new and self._known and self._far is not None:
                self._far.require_unused(directory.name)
            elif new and self._known and os.path.lexists(directory):
                # Of a program that was started over: before this call is known.
                directories.move(
                    directory, Path(f"{directory}.old-{secrets.token_hex(6)}")
                )
            replace_text(self._directory / FITS, text)
            if self._far is not None:
                self._far.put(text, self._directory)
        except OSError as error:
            raise CheckpointWriteError(
                f"{FITS}, which records the order of the fits, cannot be written.",
                received=f"{self._directory / FITS}: {error.strerror}",
                hint="Make room, or allow this user to write there; then run again.",
            ) from error

    def _warn_of_weights(
        self, number: int, now: Call, before: Call, directory: Path
    ) -> None:
        """Say once that a call may be another: nothing else tells them apart."""
        same = None in (now.weights, before.weights) or now.weights == before.weights
        if self._warned or same or not has_finished(directory):
            return
        self._warned = True
        logger.warning(
            "Call %d of fit finished earlier, but began with different weights then. "
            "If weights are drawn without a seed, all is well: its saved results are "
            "used. If the program skipped a call, or makes different fits now, use "
            "another directory.",
            number,
        )

    def _differences(self, number: int, now: Call, before: Call) -> list[str]:
        found = []
        if now.model != before.model:
            found.append(f"it trains {now.model}, but trained {before.model} before")
        elif now.settings != before.settings:
            found.append("the settings of its model or optimizer changed")
        if now.after != before.after:
            names = [
                "no call" if each is None else f"call {each}"
                for each in (now.after, before.after)
            ]
            found.append(
                f"its model was trained by {names[0]} before it, but by {names[1]} "
                "the first time"
            )
        # An edited line or new initial weights are no other call; those of another are.
        others = [each for i, each in enumerate(self._before, 1) if i != number]
        pairs = enumerate(zip(now.lines, before.lines, strict=False), 1)
        at = next((i for i, (ours, theirs) in pairs if ours != theirs), None)
        if at and now.lines[:at] in [each.lines[:at] for each in others]:
            found.append(f"it is called from a different line: {now.lines[at - 1]}")
        elif (
            now.weights not in (None, before.weights)
            and now.after is None
            and now.weights in {each.weights for each in others}
        ):
            found.append("it begins with the weights that another call began with")
        if self._again and (now.weights is None or now.weights != before.weights):
            found.append(
                "it begins with different weights than in the earlier `enabled` "
                "block of this process"
            )
        return found

    def _other_order(self, number: int, lines: list[str]) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"Call {number} of fit is not what call {number} was before: the calls "
            "come in a different order, or the program changed.",
            received="\n  " + "\n  ".join(lines),
            hint="Call fit in the same order each time; calls that had finished "
            "return at once. If the program skips work that it has done, turn that "
            "off (KerasTuner: make the tuner inside `enabled`). For different fits, "
            "use another directory.",
        )

    def _require_same_program(self, before: Saved) -> None:
        if before.program != self._program:
            raise CheckpointMismatchError(
                "This directory holds the fits of another program.",
                received=f"{self._directory}: fits of {before.program}; this is "
                f"{self._program}",
                hint="Give each program a directory of its own.",
            )
        again = self._launch and self._launch == before.launch
        if again and before.process != os.getpid():
            raise NotSupportedError(
                "Two processes of one command call fit, so each would take the other's "
                "fits for its own.",
                received=f"process {os.getpid()}, after process {before.process}, with "
                f"{self._directory}",
                hint="Use `resilient run --save` once for each, each with its own "
                "directory.",
            )
