"""What ``resilient prove`` asks of every training in a process, and what it records.

Training may be shortened, or only draw its data. A digest of each step's state is
recorded as an event, and one of the variables when the process ends: what a script does
after training, or a callback in ``on_train_end``, is in no checkpoint. A training that
nobody proves enters nothing here.
"""

import atexit
import inspect
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from resilient.backends.base import Backend, HeldTensors
from resilient.errors import message
from resilient.forked import in_forked_child
from resilient.progress import Progress
from resilient.saving.snapshot import Snapshot
from resilient.serialization.schema import SchemaError, from_json, parse
from resilient.storage.files import say_once
from resilient.telemetry.events import Events
from resilient.training.options import TRIAL

if TYPE_CHECKING:  # it loads Keras
    from resilient.training.session import Session

_Number = Annotated[int, Meta(ge=1)] | None

# Lists the variables of the last training in each directory, when the process ends.
_ends: dict[Path, tuple[Events, Backend, Callable[[], Sequence[Any]]]] = {}


@dataclass(frozen=True)
class Trial:
    """The request.

    Attributes:
        epochs: The most epochs to train; None: as many as the script says.
        steps: The most steps of each epoch; None: all.
        save_steps: Also save every so many steps; None: only when the script says so.
        data_only: Whether to draw batches without training on them.
        pause: Seconds to wait after each step, for kills to hit a fast training.
    """

    epochs: _Number = None
    steps: _Number = None
    save_steps: _Number = None
    data_only: bool = False
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
            "as the script says.",
            of=TRIAL,
        )
        return found

    def environment(self) -> dict[str, str]:
        """The environment variables that pass it to a process."""
        return {TRIAL: json.dumps(asdict(self))}

    def fewer_epochs(self, epochs: int, initial: int = 0) -> int:
        """How many epochs to train, if the script says ``epochs``."""
        return epochs if self.epochs is None else min(epochs, initial + self.epochs)

    def first_steps(self, batches: Iterator[Any], adapter: Any) -> Iterator[Any]:
        """The steps of an epoch that are trained.

        Args:
            batches: What Keras's epoch iterator yields: first and last batch of each
                step, and the batches.
            adapter: The data, whose epoch ends with them.
        """
        if self.steps is None:
            yield from batches
            return
        for begin, end, iterator in batches:
            yield begin, end, iterator
            if end + (end - begin + 1) >= self.steps:  # of the next step
                break
        adapter.on_epoch_end()

    def arguments(
        self, fit: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a fit, with fewer epochs.

        Args:
            fit: The model's own ``fit``, which may take anything by name.
            args: Positional arguments of the script.
            kwargs: Keyword arguments of the script.
        """
        bound = inspect.signature(fit).bind_partial(*args, **kwargs)
        given, extra = bound.arguments, bound.kwargs
        epochs = extra.get("epochs", given.get("epochs", 1))
        initial = extra.get("initial_epoch", given.get("initial_epoch", 0))
        changed: dict[str, Any] = {"epochs": self.fewer_epochs(epochs, initial)}
        if self.data_only:  # validation and callbacks read what is trained
            changed |= {"callbacks": None, "validation_freq": sys.maxsize}
        named = {name: changed.pop(name) for name in [*changed] if name in given}
        given.update(named)
        return bound.args, bound.kwargs | changed

    def recorder(self, session: "Session") -> "Recorder":
        """A recorder of the digests of a training."""
        return Recorder(self, session)

    def shape_steps(self, hook: Any) -> None:
        """Let the steps of a fit only draw their batches, if that is asked for.

        Args:
            hook: Keras's fit, which is about to run.
        """
        if not self.data_only:
            return
        from resilient.keras_internals import generation

        model, recorder = hook.plan.model, hook.plan.session.recorder

        def step(*given: Any) -> Any:
            batches = iter(given[-1])  # on torch they were drawn already
            draws = generation.draws_in_step(model.steps_per_execution)
            drawn = list(islice(batches, draws))
            if not drawn:
                raise StopIteration
            before, epoch, batch = hook.attempt.progress
            for number, each in enumerate(drawn, 1):
                after = Progress(before + number, epoch, batch + number)
                recorder.add_batch(after, each)
            return ({}, given[0]) if len(given) > 1 else {}

        hook.replace(vars(model), "train_function", step)
        hook.replace(vars(model), "make_train_function", lambda force=False: step)


class Recorder:
    """Records the digests of a training as events.

    Args:
        trial: The request.
        session: The training, whose events they are.

    Attributes:
        draws_only: Whether nothing is trained.
        spare: Memory for the next snapshot.
    """

    def __init__(self, trial: Trial, session: "Session") -> None:
        self._trial, self._events = trial, session.events
        self._directory = session.options.store.directory
        self._backend = session.backend
        self.draws_only = trial.data_only
        self._last: Progress | None = None
        self._names: tuple[str, ...] = ()  # of leaves, as recorded last
        self.spare: HeldTensors | None = None

    def begin(self, progress: Progress) -> bool:
        """Training begins here: whether to record the state, as for a new run, once."""
        first, self._last = self._last is None, progress
        return first and not self.draws_only and not progress.step

    def is_due(self, progress: Progress) -> bool:
        """Whether a step was trained since the last call."""
        before, self._last = self._last or progress, progress
        return not self.draws_only and progress.step > before.step

    def add(self, snapshot: Snapshot) -> None:
        """Record the digest of a snapshot, and free its memory."""
        from resilient.saving.digest import digest

        self.spare = snapshot.tensors
        found = digest(snapshot)
        snapshot.tensors.release()
        known, self._names = found.names == self._names, found.names
        self._events.emit(
            "digest",
            **snapshot.progress._asdict(),
            digest=found.whole,
            leaves=found.leaves,
            **({} if known else {"names": found.names}),
        )
        time.sleep(self._trial.pause)

    def add_batch(self, progress: Progress, batch: Any) -> None:
        """Record the digest of a batch that was drawn, and not trained on."""
        from resilient.saving.digest import of_batch

        self._events.emit("digest", **progress._asdict(), digest=of_batch(batch))
        time.sleep(self._trial.pause)

    def at_exit(self, leaves: Callable[[], Sequence[Any]]) -> None:
        """Record the digest of variables when the process ends.

        The last training in a directory counts.

        Args:
            leaves: Lists the variables. What it refers to stays in memory.
        """
        if not self.draws_only:
            if not _ends and multiprocessing.parent_process() is not None:
                Finalize(None, _record_ends, exitpriority=0)  # it may not run atexit's
            _ends[self._directory] = self._events, self._backend, leaves


@atexit.register
def _record_ends() -> None:
    if not _ends:
        return
    from resilient.saving.digest import of_variables
    from resilient.state.variables import tensors

    for events, backend, leaves in _ends.values():
        live = leaves()
        layout = [leaf.to_json() for leaf in live]
        found = of_variables(layout, backend.snapshot(tensors(live)).arrays)
        events.emit("left", digest=found.whole, names=found.names, leaves=found.leaves)


@in_forked_child
def _forget() -> None:
    _ends.clear()
