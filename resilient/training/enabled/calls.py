"""The calls of ``fit`` in a program: numbered, each with a directory of its own.

``fits.json`` records them in their order. It only ever makes an error of a call: which
directory a call has follows from its number and model, not from what is written there.
That of a program whose fits are in an object store is read there.
"""

import json
import os
import re
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient.errors import (
    CheckpointMismatchError,
    CheckpointReadError,
    NotSupportedError,
)
from resilient.serialization.schema import SchemaError, from_json, parse
from resilient.storage.files import JSON_BYTES, read_file, replace_file, say_once
from resilient.storage.lock import DirectoryLock
from resilient.storage.refusals import unreachable
from resilient.storage.remote.objects import StoreError
from resilient.storage.remote.tiered import TieredStore
from resilient.storage.store import Store
from resilient.storage.stores import store_of
from resilient.telemetry.heartbeat import VARIABLE
from resilient.training.fit.api import ResilientFit
from resilient.training.options import Location, require_one_of
from resilient.training.under_way import is_inside_a_run

if TYPE_CHECKING:
    import keras

FITS = "fits.json"
Facts = dict[str, Any]  # see ``described``
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
    """

    calls: list[Facts] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)


class Calls:
    """Makes each call resumable, if it comes in the same order as before.

    Args:
        directory: Has a directory for each call.
        options: Of ``resilient.fit``.

    Attributes:
        directory: The same, or its local copy.
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
        self._process, self._thread = os.getpid(), 0
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

        self._require_one_thread()
        parallel = parallel_strategy(replicas.strategy_of(model))
        trained = self._trained.get(model)
        facts = described(model, trained, alone=parallel.count == 1)
        self._made.append(facts)
        number = len(self._made)
        name = f"{number:03d}-{facts['model']}"
        directory = self.directory / name
        if parallel.index == 0:  # the others do what it does
            if number <= len(self._saved.calls):
                self._compare(facts, number, directory)
            self._write()
        options = {**self._options, "checkpoint_dir": directory}
        if self._far is not None:
            address = str(self._far.address / name)
            options |= {"checkpoint_dir": address, "local_dir": directory}
        history = train(**options)
        self._trained[model] = number
        return history

    def seed(self, drawn: int) -> int:
        """The seed of the next oracle of a search: what it drew in the first attempt.

        It is written with the next call: nothing depends on it before that.
        """
        self._drawn += 1
        return self._saved.seeds.setdefault(str(self._drawn), drawn)

    @cached_property
    def _saved(self) -> Saved:
        """What the file holds; from now on, no other process has the directory."""
        self._lock.acquire()
        read = self._far.get if self._far else partial(read_file, self.directory)
        try:
            return from_json(Saved, parse(read(FITS, JSON_BYTES)))
        except FileNotFoundError:
            return Saved()
        except StoreError as error:
            raise unreachable(FITS, error) from None
        except (OSError, SchemaError) as error:
            raise CheckpointReadError(
                f"{FITS}, which records the order of the fits, cannot be read.",
                received=f"{self.directory}: {error}",
                hint="Restore it; or delete it, if the program has not changed.",
            ) from None

    def _write(self) -> None:
        calls = self._made + self._saved.calls[len(self._made) :]
        text = json.dumps({"calls": calls, "seeds": self._saved.seeds})
        if self._far is not None:
            self._far.put(FITS, text.encode())
        replace_file(self.directory / FITS, text.encode())

    def _compare(self, now: Facts, number: int, directory: Path) -> None:
        """Raise if a call is another one than before; warn if it may be.

        An edited line or new initial weights make it no other, but those of another do.

        Raises:
            CheckpointMismatchError: It is another one.
        """
        before = self._saved.calls[number - 1]
        differ = {fact for fact in now if now[fact] != before.get(fact)}
        found = []
        if "process" in differ and "launch" not in differ and now["launch"]:
            found.append("process: another one of the same command")
        for fact in sorted(differ - {"launch", "process", "lines", "weights"}):
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
                "return at once. If the program skips work that it has done, turn that "
                "off (KerasTuner: make the tuner inside `enabled`). Give other fits, "
                "programs and processes that call fit a directory of their own.",
            )
        newest = next(reversed(Store(directory).checkpoints()), None)
        known = now["weights"] and before["weights"]
        if "weights" in differ and known and newest is not None and newest.finished:
            say_once(
                f"Call {number} of fit finished earlier, but began with different "
                "weights then. If weights are drawn without a seed, all is well: its "
                "saved results are used. If the program skipped a call, or makes "
                "different fits now, use another directory.",
                of=self,
            )

    def _require_one_thread(self) -> None:
        """Raise where the order of the calls is up to chance."""
        thread, forked = threading.get_ident(), os.getpid() != self._process
        self._thread = self._thread or thread
        if forked or thread != self._thread:
            raise NotSupportedError(
                "model.fit was called in another thread, or in a forked process, where "
                "the order of calls is unpredictable.",
                received=f"enabled({str(self.directory)!r})",
                hint="Call fit where it was called first, use resilient.fit there, or "
                "leave these calls out with `with resilient.disabled():`.",
            )


def described(model: "keras.Model", trained: int | None, *, alone: bool) -> Facts:
    """Describe a call of ``fit`` that is on the stack.

    Args:
        model: Which it trains.
        trained: Number of the call that trained this model last.
        alone: Whether no other process trains with this one.

    Returns:
        The program; which launch by ``resilient run`` it is, if any, and which process;
        the name of the model; a checksum of the settings of its layers and its
        optimizer; which call trained it last; a checksum of the weights that it begins
        with, if it is known; the lines of the program that call it, innermost first.
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
        # A new directory for each launch.
        "launch": Path(os.environ.get(VARIABLE, "")).parent.name,
        "process": os.getpid(),
        "model": name.strip("-")[:_LONGEST] or "model",
        "settings of its model or optimizer": xxhash.xxh3_128_hexdigest(
            json.dumps(settings).encode()
        ),
        "trained before by": f"call {trained}" if trained else "no call",
        "weights": [weights.hexdigest()] if alone and is_built(model) else [],
        "lines": lines[:_MOST],
    }
