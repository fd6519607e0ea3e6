"""What ``resilient prove`` asks of every training in a process, and what it records.

A digest of each step's batches and state is recorded as an event, and one of the
variables when training has ended: what a callback does in ``on_train_end`` is in no
checkpoint. A training that nobody proves enters nothing here.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from resilient.backends.base import HeldTensors
from resilient.errors import NotSupportedError, message
from resilient.progress import Progress
from resilient.saving.digest import Digest, digest, of_batch, of_variables
from resilient.saving.snapshot import Snapshot
from resilient.serialization.schema import SchemaError, from_json, parse
from resilient.storage.files import say_once
from resilient.training.options import TRIAL

if TYPE_CHECKING:  # it loads Keras
    from resilient.training.session import Session


@dataclass(frozen=True)
class Trial:
    """The request.

    Attributes:
        save_steps: Also save every so many steps; None: only when the script says so.
        pause: Seconds to wait after each step, for kills to hit a fast training.
    """

    save_steps: Annotated[int, Meta(ge=1)] | None = None
    pause: Annotated[float, Meta(ge=0, le=60)] = 0.0

    @classmethod
    def asked(cls) -> "Trial":
        """The request to this process, which is logged once.

        Raises:
            ValueError: The environment variable is malformed.
        """
        given = os.environ[TRIAL]
        try:
            found = from_json(cls, parse(given))
        except SchemaError as error:
            raise ValueError(
                message(
                    f"{TRIAL} is not what `resilient prove` sets.",
                    received=f"{given[:200]!r}: {error}",
                    hint="Unset it.",
                )
            ) from None
        say_once(
            f"{TRIAL} is set, as `resilient prove` does: {given}. Unset it to train "
            "without digests and pauses.",
            of=TRIAL,
        )
        return found

    def environment(self) -> dict[str, str]:
        """The environment variables that pass it to a process."""
        return {TRIAL: json.dumps(asdict(self))}


class Recorder:
    """Records the digests of a training as events.

    Args:
        trial: The request.
        session: The training, whose events they are.

    Attributes:
        spare: Memory for the next snapshot.
    """

    def __init__(self, trial: Trial, session: "Session") -> None:
        self._trial, self._session = trial, session
        self._last: Progress | None = None
        self._names: tuple[str, ...] = ()  # of leaves, as recorded last
        self._batches: list[str] = []  # since then
        self.spare: HeldTensors | None = None

    def begin(self, progress: Progress) -> bool:
        """Training begins here: whether to record the state, as for a new run, once."""
        first, self._last = self._last is None, progress
        self._batches.clear()
        return first and not progress.step

    def is_due(self, progress: Progress, *, at_end: bool) -> bool:
        """Whether a step was trained since the last call, or the run ends here."""
        before, self._last = self._last or progress, progress
        return progress.step > before.step or (at_end and progress != before)

    def drawn(self, batch: Any) -> None:
        """A batch is about to be trained."""
        try:
            self.note(of_batch(batch))
        except NotSupportedError:
            self.note("not arrays")

    def note(self, checksum: Any) -> None:
        """A batch is trained that has this checksum."""
        self._batches.append(str(checksum))

    def add(self, snapshot: Snapshot) -> None:
        """Record the digest of a snapshot and its batches, and free its memory."""
        self.spare = snapshot.tensors
        found = digest(snapshot, self._batches)
        snapshot.tensors.release()
        self._batches.clear()
        self._emit("digest", snapshot.progress, found)
        time.sleep(self._trial.pause)

    def end(self, progress: Progress, variables: Sequence[Any]) -> None:
        """Record the digest of the variables after everything that training calls."""
        from resilient.state.variables import tensors

        held = self._session.backend.snapshot(tensors(variables))
        layout = [leaf.to_json() for leaf in variables]
        self._emit("left", progress, of_variables(layout, held.arrays))

    def _emit(self, event: str, progress: Progress, found: Digest) -> None:
        known, self._names = found.names == self._names, found.names
        names = {} if known else {"names": found.names}
        fields = {"digest": found.whole, "leaves": found.leaves, **names}
        self._session.events.emit(event, **progress._asdict(), **fields)
