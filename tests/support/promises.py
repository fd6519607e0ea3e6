"""What a checkpoint directory owes, whenever one looks: the newest that was saved.

``kept_in_mind`` records, among the events of a ``Recorder``, when a save or a discard
begins and when it has returned. ``Promise`` follows these events. ``recovered`` lets
the library recover a directory as a new attempt does, and compares.
"""

import contextlib
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilient.policies import KeepPolicy
from resilient.progress import Progress
from resilient.storage import layout
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.commit import Staging
from resilient.storage.lock import DirectoryLock
from resilient.storage.quarantine import entries
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.store import Store
from support.checkpoint_samples import RAM
from support.power_cut import Disk, Event, digest, write
from support.recording import Recorder

Files = dict[str, bytes]


@dataclass
class Promise:
    """What has to be found.

    Attributes:
        saved: The versions of each step's checkpoint, in their order.
        damaged: Steps whose checkpoint something else destroys.
        texts: What may be in ``rollbacks.json``.
    """

    saved: dict[int, list[Files]]
    damaged: set[int] = field(default_factory=set)
    texts: set[str | None] = field(default_factory=lambda: {None})
    _returned: dict[int, int] = field(default_factory=dict)
    _perhaps: dict[int, set[int]] = field(default_factory=dict)
    _moving: list[tuple[int, int]] = field(default_factory=list)
    _moved: list[tuple[int, int]] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        if event.kind == "saving":
            step, version = event.what
            self._perhaps.setdefault(step, set()).add(version)
            self._may_go(step)
        elif event.kind == "saved":
            step, version = event.what
            self._returned[step], self._perhaps[step] = version, {version}
        elif event.kind == "pruning":
            for step in event.what:
                self._returned.pop(step, None)
                self._may_go(step)
        elif event.kind == "discarding":
            self._moving = _pop_after(self._returned, event.what)
        elif event.kind == "discarded":
            _pop_after(self._perhaps, event.what)
            self._moved, self._moving = self._moved + self._moving, []
        elif event.kind == "damaged":
            self.damaged.add(event.what)
            del self._returned[event.what]
        elif event.kind == "noting":
            self.texts.add(event.what)
        elif event.kind == "noted":
            self.texts = {event.what}

    def _may_go(self, step: int) -> None:
        """It stayed in place: the process that moved it was killed."""
        self._moving = [moved for moved in self._moving if moved[0] != step]

    def check(self, found: Checkpoint | None) -> None:
        """It is the newest whose save had returned, or one whose save had begun."""
        newest = max(self._returned, default=None)
        if found is None:
            assert newest is None, f"step {newest} is lost"
            return
        assert newest is None or found.step >= newest, f"{found.step} is not {newest}"
        self.check_bytes(found)

    def check_bytes(self, found: Checkpoint) -> None:
        content = {name: (found.path / name).read_bytes() for name in found.files}
        versions = self.saved[found.step]
        allowed = [versions[n] for n in self._perhaps.get(found.step, ())]
        assert content in allowed, f"step {found.step} is not what was saved"

    def check_moved(self, directory: Path) -> None:
        """What was moved to quarantine is there; until it is, it may be in place."""
        moved = list(entries(directory))
        places = [*moved, *directory.glob("step-????????")]
        for demanded, there in ((self._moved, moved), (self._moving, places)):
            known = [(path.name, _files(path).items()) for path in there]
            for step, version in demanded:
                name, files = layout.committed_name(step), self.saved[step][version]
                assert any(
                    each.startswith(name) and content >= files.items()
                    for each, content in known
                ), f"step {step} is neither in quarantine nor in place"


def _pop_after(versions: dict[int, Any], after: int) -> list[tuple[int, Any]]:
    return [(s, versions.pop(s)) for s in list(versions) if s > after]


@contextlib.contextmanager
def kept_in_mind(recorder: Recorder) -> Iterator[dict[int, list[Files]]]:
    """While entered, stores say what they begin to change, and when that is done.

    Yields:
        What is saved, as in ``Promise``.
    """
    saved: dict[int, list[Files]] = {}
    real = {name: getattr(Store, name) for name in _PATCHED}

    def staging(self: Store, progress: Progress, name: str | None = None) -> Any:
        versions = saved.setdefault(progress.step, [])
        versions.append({})
        recorder.mark("saving", (progress.step, len(versions) - 1))
        return real["staging"](self, progress, name)

    def commit(self: Store, place: Staging, *args: Any, **kwargs: Any) -> Checkpoint:
        step = place.progress.step
        saved[step][-1] = _files(place.path)
        checkpoint = real["commit"](self, place, *args, **kwargs)
        recorder.mark("saved", (step, len(saved[step]) - 1))
        return checkpoint

    def prune(self: Store, keep: KeepPolicy) -> list[int]:
        found = self.checkpoints()
        kept = keep.select(found) | {found[-1].step}
        recorder.mark("pruning", [c.step for c in found if c.step not in kept])
        return real["prune"](self, keep)

    def discarding(name: str) -> Callable[..., Any]:
        def discard(self: Store, after: int = -1) -> Any:
            recorder.mark("discarding", after)
            result = real[name](self, *([after] if _DISCARDS[name] else []))
            recorder.mark("discarded", after)
            return result

        return discard

    try:
        Store.staging, Store.commit, Store.prune = staging, commit, prune
        for name in _DISCARDS:
            setattr(Store, name, discarding(name))
        yield saved
    finally:
        for name, method in real.items():
            setattr(Store, name, method)


# Whether they are told after which step.
_DISCARDS = {"discard_after": True, "discard_all": False}
_PATCHED = ("staging", "commit", "prune", *_DISCARDS)


def _files(directory: Path) -> Files:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def cut_power(
    events: list[Event],
    promise: Promise,
    check: Callable[[Path, Promise], None],
    states: int,
    seed: int,
    *,
    first: int = 0,
) -> None:
    """Check what may be left of power cuts after some events, from ``first`` on.

    Args:
        events: What was done to a directory that has the checkpoint directory ``run``.
        promise: Before the first of them.
        check: Called with that directory and what is promised of it.
        states: How many.
        seed: Of what is lost.
        first: Number of an event.
    """
    disk, dice = Disk(0), random.Random(seed)
    cuts, seen = Counter(dice.choices(range(first, len(events)), k=states)), set()
    for number, event in enumerate(events):
        disk.apply(event)
        promise.apply(event)
        for _ in range(cuts[number]):
            tree = disk.after_power_cut(dice)
            seen.add(digest(tree))
            with tempfile.TemporaryDirectory(dir=RAM) as home:
                write(tree, Path(home, "disk"))
                try:
                    check(Path(home, "disk", "run"), promise)
                except Exception as error:
                    what = f"after event {number} of {len(events)}: {error!r}"
                    raise AssertionError(what) from error
    print(f"{states} power cuts, which left {len(seen)} different directories")


def recovered(
    directory: Path, promise: Promise, reader: Callable[[Checkpoint], Any]
) -> Store:
    """A new attempt begins: nothing is damaged, and what was promised is there."""
    with DirectoryLock(directory):
        store, reports, known = Store(directory), [], _undamaged(directory, promise)
        remove_stale_staging(store.directory)
        found = store.load_newest(reader, lambda name, why: reports.append(name))
        expected = {layout.committed_name(step) for step in promise.damaged}
        assert set(reports) <= expected, "a power cut leaves what looks like damage"
        assert _undamaged(directory, promise) == known
        promise.check(None if found is None else found[0])
        for step in set(layout.committed_steps(directory)) - promise.damaged:
            assert store.problems(step) == []
            promise.check_bytes(store.read(step))
    promise.check_moved(directory)
    rollbacks = directory / layout.ROLLBACKS
    assert (rollbacks.read_text() if rollbacks.exists() else None) in promise.texts
    return store


def _undamaged(directory: Path, promise: Promise) -> set[str]:
    """Names in quarantine, but of what has to be there."""
    names = tuple(layout.committed_name(step) for step in promise.damaged)
    found = {path.name for path in entries(directory)}
    return {name for name in found if not (names and name.startswith(names))}
