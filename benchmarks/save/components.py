"""A save and a restore in pieces: stall, whole, restore, memory, beside the limits.

Subjects take turns in random order. Each save comes after a step of training, and each
sample is paired with a limit that was measured a moment before or after it.
"""

import gc
import random
import statistics
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import damage
import memory
import numpy as np
from limits import Limits, timed, trim
from paired import summary
from rich.console import Console
from rich.progress import track
from state import (
    BACKEND,
    device,
    host_arrays,
    make_model,
    samples,
    settle,
    tensors,
    width_of,
)
from subjects import Kind, Subject, available, flush

T = TypeVar("T")

_BATCH = 8
_MEMORY_TRIALS = 5
_ERRORS = Console(stderr=True)


class Bench:
    """One model, and everything that is measured on it.

    Args:
        megabytes: Of state.
        root: Directory for all files.
    """

    def __init__(self, megabytes: float, root: Path) -> None:
        self.model = make_model(width_of(megabytes), _BATCH)
        self._batch = samples(self.model, _BATCH)
        self._root = root
        self._limits = Limits(host_arrays(self.model), root)
        self.times: dict[str, dict[str, list[tuple[float, float]]]] = {}
        self.nbytes = self._limits.nbytes

    def step(self) -> None:
        """Change all of the state."""
        self.model.train_on_batch(*self._batch)
        settle(self.model)

    def make(self, kind: Kind) -> Subject:
        """A subject in a directory of its own."""
        return kind(self.model, Path(tempfile.mkdtemp(dir=self._root)))

    def sample(self, subject: Subject, *, limit_first: bool) -> None:
        """One save and one restore, each limit beside what it limits."""
        subject.tidy()
        self.step()
        gc.collect()
        copied = self._limits.memcpy()
        in_turn = partial(_in_turn, limit_first=limit_first)
        wrote, (stall, whole) = in_turn(self._limits.write, partial(_save, subject))
        read, restored = in_turn(self._limits.read, partial(self._restore, subject))
        into = self.times.setdefault(subject.name, defaultdict(list))
        into["stall"].append((stall, copied))
        into["save"].append((whole, wrote))
        into["restore"].append((restored, read))
        into["read_reused"].append((self._limits.read_reused(), read))

    def restores_all(self, subject: Subject) -> bool:
        """Warm up, and see whether every variable comes back as it was saved."""
        self.step()
        saved = host_arrays(self.model)
        subject.save()
        subject.wait()
        self.step()
        subject.restore()
        back = host_arrays(self.model)
        return all(np.array_equal(a, b) for a, b in zip(saved, back, strict=True))

    def memory(self, kind: Kind) -> dict[str, Any] | None:
        """The most bytes that a save adds, beside those of the state."""
        if not memory.measurable():
            return None
        make = partial(self.make, kind)
        extra = [
            memory.most_added(make, self.step, background=kind.background)
            for _ in range(_MEMORY_TRIALS)
        ]
        return summary(extra, [self.nbytes] * len(extra))

    def _restore(self, subject: Subject) -> float:
        def restore() -> None:
            subject.restore()
            settle(self.model)

        trim()
        return timed(restore)


def _save(subject: Subject) -> tuple[float, float]:
    """Seconds until training goes on, and until all is on disk."""

    def durable() -> None:
        subject.wait()
        if not subject.flushes:
            flush(subject.directory)

    stall = timed(subject.save)
    return stall, stall + timed(durable)


def _in_turn(
    limit: Callable[[], float], do: Callable[[], T], *, limit_first: bool
) -> tuple[float, T]:
    if limit_first:
        return limit(), do()
    done = do()
    return limit(), done


def measure(megabytes: float, repeats: int, directory: str) -> dict[str, Any]:
    """Everything at one size."""
    kinds, left_out = available()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=directory) as root:
        bench = Bench(megabytes, Path(root))
        ready = []
        for kind in kinds:
            try:
                subject = bench.make(kind)
                whole = bench.restores_all(subject)
            except Exception as error:  # a peer that fails is no reason to stop
                traceback.print_exc()
                left_out.append(f"{kind.name}: {type(error).__name__}: {error}")
                continue
            ready.append(subject)
            found[kind.name] = {"flushes": kind.flushes, "restores_all": whole}
        gc.freeze()  # what is there now is there to stay: collections are short
        what = f"{BACKEND}, {megabytes:g} MB, saves"
        for subject, limit_first in _turns(ready, repeats, what):
            bench.sample(subject, limit_first=limit_first)
        for subject in track(ready, f"{what}: memory", console=_ERRORS):
            one = found[subject.name]
            one["memory"] = bench.memory(type(subject))
            make = partial(bench.make, type(subject))
            one["sees_damage"] = damage.is_seen(make, bench.step)
            subject.close()
            for measured, pairs in bench.times[subject.name].items():
                one[measured] = summary(*zip(*pairs, strict=True))
    return {
        "backend": BACKEND,
        "device": device(),
        "megabytes": megabytes,
        "nbytes": bench.nbytes,
        "tensors": len(tensors(bench.model)),
        "limits": _limits(found),
        "subjects": found,
        "left_out": left_out,
    }


def _turns(
    ready: list[Subject], repeats: int, what: str
) -> Iterable[tuple[Subject, bool]]:
    """All subjects in random order, again and again; whether the limit comes first."""
    order = random.Random(0)
    turns = [
        (subject, bool(number % 2))
        for number in range(repeats)
        for subject in order.sample(ready, len(ready))
    ]
    return track(turns, what, console=_ERRORS)


def _limits(found: dict[str, Any]) -> dict[str, float]:
    """Medians of all samples, in seconds."""
    names = {"memcpy": "stall", "write_fsync": "save", "warm_read": "restore"}
    limits = {
        limit: statistics.median(x for one in found.values() for x in one[of]["limits"])
        for limit, of in names.items()
    }
    reused = [x for one in found.values() for x in one["read_reused"]["samples"]]
    return limits | {"warm_read_reused": statistics.median(reused)}
