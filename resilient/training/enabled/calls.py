"""The calls of ``fit`` in a program: numbered, each with a directory of its own.

``fits.json`` records them in their order, and which have ended. It only ever makes an
error of a call, or of one that is not made: which directory a call has follows from its
number and model, not from what is written there. That of a program whose fits are in an
object store is read there.
"""

import contextlib
import json
import os
import re
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient.errors import (
    CheckpointMismatchError,
    CheckpointReadError,
    DirectoryInUseError,
    NotSupportedError,
)
from resilient.serialization.schema import SchemaError, from_json, parse
from resilient.storage.files import JSON_BYTES, read_file, replace_file, say_once
from resilient.storage.lock import DirectoryLock
from resilient.storage.refusals import unreachable
from resilient.storage.remote.objects import Objects, StoreError
from resilient.storage.remote.tiered import TieredStore
from resilient.storage.stores import store_of
from resilient.telemetry.heartbeat import VARIABLE
from resilient.training.fit.api import ResilientFit
from resilient.training.options import Location, require_one_of
from resilient.training.under_way import is_inside_a_run

if TYPE_CHECKING:
    import keras

FITS = "fits.json"
Facts = dict[str, Any]  # see ``described``, and whether the call has ended
_LONGEST = 40  # characters of a name
_MOST = 20  # lines
_OURS = Path(__file__).parents[2]
_LIBRARIES = {"site-packages", "dist-packages"}

# The innermost block is the last; None stands for ``disabled``.
entered: "list[Calls | None]" = []
# Directories whose fits this process has made to the end.
ended: set[Path] = set()


def current() -> "Calls | None":
    """The innermost block, if it makes calls resumable; a run around them does."""
    return entered[-1] if entered and not is_inside_a_run() else None


@dataclass
class Saved:
    """What the file holds.

    Attributes:
        calls: What each call was.
        seeds: What each oracle of a KerasTuner search drew that was given none, by
            number.
        launch: By ``resilient run``, of the process that made the last call, if any.
        process: That one's id.
    """

    calls: list[Facts] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)
    launch: str = ""
    process: int = 0

    @property
    def is_of_sibling(self) -> bool:
        """Whether another process of this launch wrote it."""
        return self.launch == _launch() != "" and self.process != os.getpid()


class Calls:
    """Makes each call resumable, if it comes in the same order as before.

    Args:
        directory: Has a directory for each call.
        options: Of ``resilient.fit``.

    Attributes:
        directory: The same, or its local copy.
        process: Whose calls these are.
        projects: Of KerasTuner, which tuners of this process have begun.
    """

    def __init__(self, directory: Location, options: Mapping[str, Any]) -> None:
        ResilientFit.check_options(checkpoint_dir=directory, **options)
        require_one_of("resume", options.get("resume", "auto"), "auto")
        store = store_of(directory, options.get("local_dir"), options.get("upload"))
        self.directory, self.projects = store.directory, set[Path]()
        self._far = store.objects if isinstance(store, TieredStore) else None
        self._options, self._drawn = options, 0
        self._made: list[Facts] = []
        self._raised = 0  # id of the exception that the last call raised
        self.process = os.getpid()
        self._thread: threading.Thread | None = None
        self._lock = DirectoryLock(self.directory)
        # Which call trained a model last.
        self._trained: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Give the directory back."""
        self._lock.release()

    def fit(self, model: Any, train: Callable[..., Any]) -> Any:
        """Make a call of a model's ``fit``.

        Args:
            model: The model.
            train: Does so with options of ``resilient.fit``.
        """
        from resilient.distributed.strategies.base import parallel_strategy
        from resilient.keras_internals import replicas

        self.settle()
        parallel = parallel_strategy(replicas.strategy_of(model))
        alone = parallel.count == 1
        thread = threading.current_thread()  # idents are used anew
        self._thread = self._thread or thread
        if thread is not self._thread or (alone and os.getpid() != self.process):
            raise self._elsewhere()
        facts = described(model, self._trained.get(model), alone=alone)
        self._made.append(facts)
        number, name = len(self._made), directory_name(len(self._made), facts)
        directory = self.directory / name
        if parallel.index == 0:  # the others do what it does
            if number <= len(self._saved.calls):
                self._compare(facts, number)
            self._write()
        options = {**self._options, "checkpoint_dir": directory}
        if self._far is not None:
            address = str(self._far.address / name)
            options |= {"checkpoint_dir": address, "local_dir": directory}
        try:
            history = train(**options)
        except Exception as error:
            self._raised = id(error)
            raise
        self._trained[model] = number
        self._end(facts, "well")
        return history

    def settle(self) -> None:
        """Record that a call that raised has ended, if the program went on after it."""
        # What nobody catches ends the process.
        if self._raised not in (0, id(getattr(sys, "last_value", None))):
            self._end(self._made[-1], "with an error")
        self._raised = 0

    def require_all_made(self) -> None:
        """Raise if this process did not make all calls that it should have.

        Raises:
            CheckpointMismatchError: One was begun earlier, and had not ended.
        """
        self.settle()
        made, known = len(self._made), "_saved" in vars(self)
        if known or (not made and (self._far or (self.directory / FITS).exists())):
            with contextlib.suppress(DirectoryInUseError):  # another process makes them
                require_ended(self._saved.calls, self.directory, made)

    def seed(self, drawn: int) -> int:
        """The seed of the next oracle of a search: what it drew in the first attempt.

        It is written with the next call: nothing depends on it before that.
        """
        self._drawn += 1
        return self._saved.seeds.setdefault(str(self._drawn), drawn)

    @cached_property
    def _saved(self) -> Saved:
        """What the file holds; from now on, no other process has the directory."""
        try:
            self._lock.acquire()
        except DirectoryInUseError:
            if saved_in(self.directory).is_of_sibling:
                raise self._elsewhere() from None
            raise
        found = saved_in(self.directory, self._far)
        if found.is_of_sibling:
            raise self._elsewhere()
        return found

    def _end(self, facts: Facts, how: str) -> None:
        """Record how a call has ended, if this process is the one that does."""
        if "_saved" in vars(self) and facts["ended"] != how:
            facts["ended"] = how
            self._write()

    def _write(self) -> None:
        calls = self._made + self._saved.calls[len(self._made) :]
        now = Saved(calls, self._saved.seeds, _launch(), os.getpid())
        text = json.dumps(vars(now))
        if self._far is not None:
            self._far.put(FITS, text.encode())
        replace_file(self.directory / FITS, text.encode())

    def _compare(self, now: Facts, number: int) -> None:
        """Raise if a call is another one than before; warn if it may be.

        An edited line or new initial weights make it no other, but those of another do.

        Raises:
            CheckpointMismatchError: It is another one.
        """
        before = self._saved.calls[number - 1]
        now["ended"] = before.get("ended", "")
        differ = {fact for fact in now if now[fact] != before.get(fact)}
        found = []
        for fact in sorted(differ - {"lines", "weights"}):
            found.append(f"{fact}: {now[fact]} now, {before.get(fact)} before")
        for fact in sorted(differ & {"lines", "weights"}):
            same = os.path.commonprefix([now[fact], before[fact]])  # noqa: RUF071
            mine = now[fact][: len(same) + 1]
            others = [each[fact][: len(mine)] for each in self._saved.calls]
            if mine and mine in others:
                other = 1 + others.index(mine)
                found.append(f"{fact}: those of call {other}, {mine[-1]}")
        if self.directory in ended and ("weights" in differ or not now["weights"]):
            found.append("weights: not those of the earlier block in this process")
        if found:
            raise CheckpointMismatchError(
                f"Call {number} of fit is not what it was before: the calls come "
                "in a different order, or the program changed.",
                received="\n  " + "\n  ".join(found),
                hint="Call fit in the same order each time; calls that had finished "
                "return at once. If the program skips work that it has begun or done "
                "(a study in a database), turn that off (KerasTuner: make the tuner "
                "inside `enabled`). Give other fits and programs a directory of their "
                "own.",
            )
        if "weights" in differ and now["weights"] and before["weights"]:
            say_once(
                f"Call {number} of fit began with different weights in an earlier "
                "attempt. If weights are drawn without a seed, all is well: it goes on "
                "with what was saved. If the program skipped a call, or makes "
                "different fits now, use another directory.",
                of=(self, now["ended"]),
            )

    def _elsewhere(self) -> NotSupportedError:
        return NotSupportedError(
            "model.fit was called in several threads or processes of one program, so "
            "the order of calls is unpredictable.",
            received=f"process {os.getpid()}, with {self.directory}",
            hint="In threads and processes that a program starts (a pool, joblib, one "
            "for each fold), call resilient.fit, with a checkpoint_dir for each, such "
            'as f"runs/fold-{i}"; or leave these calls out with `with '
            "resilient.disabled():`.",
        )


def directory_name(number: int, facts: Facts) -> str:
    """The name of a call's directory."""
    return f"{number:03d}-{facts['model']}"


def saved_in(directory: Path, far: Objects | None = None) -> Saved:
    """What the file holds.

    Args:
        directory: Where it is.
        far: Where it is instead, if the directory is the local copy of that.

    Raises:
        CheckpointReadError: It is damaged, or cannot be read right now.
    """
    try:
        read = far.get if far is not None else partial(read_file, directory)
        return from_json(Saved, parse(read(FITS, JSON_BYTES)))
    except FileNotFoundError:
        return Saved()
    except StoreError as error:
        raise unreachable(FITS, error) from None
    except (OSError, SchemaError) as error:
        raise CheckpointReadError(
            f"{FITS}, which records the order of the fits, cannot be read.",
            received=f"{directory}: {error}",
            hint="Restore it; or delete it, if the program has not changed.",
        ) from None


def require_ended(calls: Sequence[Facts], directory: Path, made: int = 0) -> None:
    """Raise unless calls have ended.

    Args:
        calls: Those of a program.
        directory: Theirs.
        made: How many of them this process has made.

    Raises:
        CheckpointMismatchError: One was begun, interrupted, and not made again.
    """
    missing = [
        f"call {number}, saved in {directory / directory_name(number, call)}"
        for number, call in enumerate(calls, 1)
        if number > made and not call.get("ended")
    ]
    if missing:
        raise CheckpointMismatchError(
            "The program has ended, but did not call fit again where it had been "
            "interrupted.",
            received="\n  " + "\n  ".join(missing),
            hint="Make all calls again in each attempt. If the program remembers which "
            "ones it has begun (a study in a database), let it forget those that did "
            "not finish. To give them up, use another directory from now on.",
        )


def _launch() -> str:
    """The launch by ``resilient run`` that this process belongs to, if any."""
    return Path(os.environ.get(VARIABLE, "")).parent.name  # a new one for each


def described(model: "keras.Model", trained: int | None, *, alone: bool) -> Facts:
    """Describe a call of ``fit`` that is on the stack.

    Args:
        model: Which it trains.
        trained: Number of the call that trained this model last.
        alone: Whether no other process trains with this one.

    Returns:
        The program; the name of the model; a checksum of the settings of its layers and
        its optimizer; which call trained it last; a checksum of the weights that it
        begins with, if it is known; the lines of the program that call it, innermost
        first; how it has ended: not yet.
    """
    import keras
    import xxhash

    from resilient.state.build import is_built
    from resilient.state.fingerprint import learning_rates
    from resilient.state.settings import Settings

    # Without the number that Keras appends: other models shift that.
    name = re.sub(r"\W+", "-", re.sub(r"_\d+$", "", model.name), flags=re.ASCII)
    optimizer = getattr(model, "optimizer", None)  # not compiled: Keras says so
    rates = {key: rate for key, (_, rate) in learning_rates(optimizer).items()}
    # What a sweep may vary between calls.
    settings = [type(model).__name__, Settings(model, whole=True).facts, rates]
    weights = xxhash.xxh3_128()
    for each in model.weights if alone else []:
        weights.update(keras.ops.convert_to_numpy(each).tobytes())
    lines = []
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if not (path.is_relative_to(_OURS) or _LIBRARIES.intersection(path.parts)):
            lines.append(f"{path.name}: {frame.line}")
    return {
        "program": os.path.basename(sys.argv[0]),
        "model": name.strip("-")[:_LONGEST] or "model",
        "settings of its model or optimizer": xxhash.xxh3_128_hexdigest(
            json.dumps(settings).encode()
        ),
        "trained before by": f"call {trained}" if trained else "no call",
        "weights": [weights.hexdigest()] if alone and is_built(model) else [],
        "lines": lines[:_MOST],
        "ended": "",
    }
