"""The calls of ``fit`` in a program: numbered, each with a directory of its own."""

import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from resilient.errors import NotSupportedError, message
from resilient.storage import scratch
from resilient.storage.lock import DirectoryLock
from resilient.storage.remote.address import Address
from resilient.storage.stores import near
from resilient.training.enabled.far_journal import FarJournal
from resilient.training.enabled.journal import Journal
from resilient.training.fit.api import ResilientFit

if TYPE_CHECKING:
    import keras

    from resilient.training.enabled.intercept import Fit


# Directories whose fits this process has made to the end.
_left: set[Path] = set()


class Calls:
    """Makes each call resumable, if it comes in the same order as before.

    A context manager: leaving it gives the directory back.

    Args:
        directory: Has a directory for each call.
        options: Of ``resilient.fit``.
    """

    def __init__(
        self, directory: str | os.PathLike[str], options: Mapping[str, Any]
    ) -> None:
        if "checkpoint_dir" in options:
            raise TypeError(
                message(
                    "enabled() has no `checkpoint_dir`: each fit gets its own "
                    "directory in the one that you pass first.",
                    received=f"checkpoint_dir={options['checkpoint_dir']!r}",
                )
            )
        ResilientFit.check_options(checkpoint_dir=directory, **options)
        resume = options.get("resume", "auto")
        if resume not in ("auto", "never"):
            raise ValueError(
                message(
                    '`resume` of enabled() must be "auto" or "never".',
                    received=repr(resume),
                )
            )
        self._directory: Path = near(directory, options.get("local_dir"))
        address = Address.of(scratch.instead_of(directory))
        self._far: FarJournal | None = None
        if address is not None:
            self._far = FarJournal(address, options.get("upload"))
        self._options, self._count = options, 0
        self._lock = DirectoryLock(self._directory)
        self._journal: Journal | None = None
        self._process, self._thread = os.getpid(), -1
        # Which call trained a model last.
        self._trained: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._lock.release()
        if self._journal is not None and kind is None:
            _left.add(self._directory)
        self._journal = None

    def fit(
        self,
        model: "keras.Model",
        plain: "Fit",
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> "keras.callbacks.History":
        """As of ``intercept.Resumable``."""
        from resilient.distributed.strategies import parallel_strategy
        from resilient.keras_internals import replicas
        from resilient.training.enabled.describe import called, directory_name

        self._require_one_thread()
        self._count += 1
        directory = self._directory / directory_name(self._count, model)
        parallel = parallel_strategy(replicas.strategy_of(model))
        if parallel.index == 0:  # the others do what it does
            call = called(model, self._trained.get(model), alone=parallel.count == 1)
            self.opened().take(self._count, call, directory)
        run = ResilientFit(model, **{**self._options, **self._where(directory)})
        history = run.fit_by(plain, args, kwargs)
        self._trained[model] = self._count
        return history

    def opened(self) -> Journal:
        """The journal; from now on, no other process has the directory."""
        if self._journal is None:
            self._lock.acquire()
            anew = self._options.get("resume") == "never"
            again = self._directory in _left
            if self._far is not None and not anew:
                self._far.fetch(self._directory)
            self._journal = Journal(
                self._directory, anew=anew, again=again, far=self._far
            )
        return self._journal

    def _where(self, directory: Path) -> dict[str, Any]:
        """Options that say where the checkpoints of a call are."""
        if self._far is None:
            return {"checkpoint_dir": directory}
        address = self._far.address / directory.name
        return {"checkpoint_dir": str(address), "local_dir": directory}

    def is_of_parent(self) -> bool:
        """Whether this process was forked from the one that enabled it."""
        return os.getpid() != self._process

    def _require_one_thread(self) -> None:
        """Raise where the order of the calls is up to chance."""
        thread = threading.get_ident()
        if self._thread == -1:
            self._thread = thread
        forked = self.is_of_parent()
        if not forked and thread == self._thread:
            return
        where = "a forked process" if forked else "another thread"
        raise NotSupportedError(
            f"model.fit was called in {where}. The order of calls is unpredictable "
            "there, so no call could find its own checkpoints.",
            received=f"enabled({os.fspath(self._directory)!r})",
            hint="Call fit in the thread and process that called it first, use "
            "resilient.fit with a checkpoint_dir for each, or leave these calls out "
            "with `with resilient.disabled():`.",
        )
