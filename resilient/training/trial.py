"""What ``resilient prove`` asks of every training in a process, and what it records.

Training may be shortened, or only draw its data. A digest of each step's state is
recorded as an event, and one of the variables when the process ends: what a script does
after training, or a callback in ``on_train_end``, is in no checkpoint. A training that
nobody proves enters nothing here.
"""

import atexit
import contextlib
import inspect
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from resilient.backends.base import Backend, HeldTensors
from resilient.errors import message
from resilient.forked import in_forked_child
from resilient.policies import SavePolicy, every
from resilient.progress import Progress
from resilient.saving.snapshot import Snapshot
from resilient.saving.writer import BackgroundWriter
from resilient.serialization.schema import SchemaError, from_json, parse
from resilient.storage.files import say_once
from resilient.telemetry.events import Events
from resilient.training.options import TRIAL

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
            f"{TRIAL} is set, as `resilient prove` does: {found}. Unset it to train "
            "as the script says.",
            of=TRIAL,
        )
        return found

    def environment(self) -> dict[str, str]:
        """The environment variables that pass it to a process."""
        return {TRIAL: json.dumps(asdict(self))}

    def __str__(self) -> str:
        """What is asked for, in words."""
        what = ["nothing is trained" if self.data_only else "each state is digested"]
        if self.epochs is not None:
            what.append(f"at most {self.epochs:,} epochs")
        if self.steps is not None:
            what.append(f"at most {self.steps:,} steps per epoch")
        return ", ".join(what)

    def saving(self, policy: SavePolicy) -> SavePolicy:
        """When to save, if the script says ``policy``."""
        return policy | every(steps=self.save_steps) if self.save_steps else policy

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

    def recorder(self, events: Events) -> "Recorder":
        """A recorder of the digests of a training."""
        return Recorder(self, events)

    @contextlib.contextmanager
    def stepping(
        self, model: Any, draw: Callable[[Iterator[Any]], None]
    ) -> Iterator[None]:
        """Inside, a training step only draws its batches, if that is asked for.

        Args:
            model: The model.
            draw: Called with the batches of each step.
        """
        if not self.data_only:
            yield
            return
        own, names = vars(model), ("train_function", "make_train_function")
        before = {name: own[name] for name in names if name in own}

        def step(*given: Any) -> Any:
            draw(iter(given[-1]))  # on torch they were drawn already
            return ({}, given[0]) if len(given) > 1 else {}

        own.update(zip(names, (step, lambda force=False: step), strict=True))
        try:
            yield
        finally:
            for name in names:
                own.pop(name)
            own.update(before)


class Recorder:
    """Records the digests of a training as events, in the background.

    A context: leaving it waits for the last one.

    Args:
        trial: The request.
        events: Where they are recorded.

    Attributes:
        draws_only: Whether nothing is trained.
    """

    def __init__(self, trial: Trial, events: Events) -> None:
        self._trial, self._events = trial, events
        self.draws_only = trial.data_only
        self._last: Progress | None = None
        self._writer = BackgroundWriter(self._process)
        self._names: tuple[str, ...] = ()  # of leaves, as recorded last
        self._spare: HeldTensors | None = None

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        with self._writer.closing(error):
            self.wait()

    def begin(self, progress: Progress) -> bool:
        """Training begins here: whether to record the state, as for a new run, once."""
        first, self._last = self._last is None, progress
        return first and not self.draws_only and not progress.step

    def is_due(self, progress: Progress) -> bool:
        """Whether a step was trained since the last call."""
        before, self._last = self._last or progress, progress
        return not self.draws_only and progress.step > before.step

    def spare(self) -> HeldTensors | None:
        """Memory for the next snapshot, once the last one is digested."""
        self.wait()
        return self._spare

    def wait(self) -> None:
        """Return when the last digest is recorded."""
        self._writer.wait()

    def add(self, snapshot: Snapshot) -> None:
        """Compute the digest of a snapshot, in the background, and record it."""
        self._spare = snapshot.tensors
        self._writer.start(snapshot)
        time.sleep(self._trial.pause)

    def add_batch(self, progress: Progress, batch: Any) -> None:
        """Record the digest of a batch that was drawn, and not trained on."""
        from resilient.saving.digest import of_batch

        self._events.emit("digest", **progress._asdict(), digest=of_batch(batch))
        time.sleep(self._trial.pause)

    def at_exit(
        self, directory: Path, backend: Backend, leaves: Callable[[], Sequence[Any]]
    ) -> None:
        """Record the digest of variables when the process ends.

        Args:
            directory: The run's, of which the last training counts.
            backend: The backend's adapter.
            leaves: Lists the variables. What it refers to stays in memory.
        """
        if not self.draws_only:
            if not _ends and multiprocessing.parent_process() is not None:
                Finalize(None, _record_ends, exitpriority=0)  # it may not run atexit's
            _ends[directory] = self._events, backend, leaves

    def _process(self, snapshot: Snapshot) -> None:
        """Record the digest of a snapshot, on the writer's thread; free its memory."""
        from resilient.saving.digest import digest

        try:
            found = digest(snapshot)
        finally:
            snapshot.tensors.release()
        known, self._names = found.names == self._names, found.names
        self._events.emit(
            "digest",
            **snapshot.progress._asdict(),
            digest=found.whole,
            leaves=found.leaves,
            **({} if known else {"names": found.names}),
        )


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
