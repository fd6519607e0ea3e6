"""The checkpoints of one run in an object store.

    claims.json                                   see ``claims``
    newest                                        name of the last commit, should a
                                                  listing lag behind it
    step-00001200-<claim>-0001/manifest.json      the commit: written last
    step-00001200-<claim>-0001/run.json ...       the files, as in a local checkpoint
    events.jsonl, rollbacks.json                  as in a local directory

A name is used only once, so a kill in the middle of an upload leaves objects that
nobody reads, and two writers never write the same object.
"""

from pathlib import Path
from typing import TypeVar

from resilient.errors import (
    CorruptCheckpointError,
    DirectoryInUseError,
    NotSupportedError,
)
from resilient.policies import KeepPolicy
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.layout import LAST_STEP, MANIFEST
from resilient.storage.manifest import Manifest
from resilient.storage.remote import claims
from resilient.storage.remote.claims import Claims, SchemaError, Uploaded
from resilient.storage.remote.committed import (
    Committed,
    FarCheckpoint,
    Unreadable,
    look_at,
)
from resilient.storage.remote.objects import Objects, StoreError
from resilient.storage.remote.transfer import Transfer, at_once, fetch

K = TypeVar("K", bound=Committed)

_NEWEST = "newest"
_SMALL = 16  # small requests at the same time


class Far:
    """A run in an object store, as of when somebody last looked.

    Args:
        objects: Below its address.

    Attributes:
        claims: Who owns it; None if there is no run.
        found: The committed checkpoints that are part of the run, by step.
        unreadable: The unreadable ones that are part of it, by step.
        names: Every object, with its size in bytes.
    """

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.claims: Claims | None = None
        self.found: dict[int, FarCheckpoint] = {}
        self.unreadable: dict[int, Unreadable] = {}
        self.names: dict[str, int] = {}
        self._mine: str | None = None
        self._count = 0

    def again(self) -> "Far":
        """The same, with requests of its own, and owned by nobody here."""
        far = Far(Objects(self.objects.address, self.objects.upload))
        far.found, far.unreadable = dict(self.found), dict(self.unreadable)
        return far

    def look(self) -> None:
        """List the store's contents.

        Raises:
            StoreError: The store does not say.
            CorruptCheckpointError: ``claims.json`` is something else.
        """
        self.found, self.unreadable = {}, {}
        self.claims, self.names = self._read_claims(), self.objects.names()
        self._count = 0
        at_once(self._look_at, self._part_of_the_run(), _SMALL)

    def stop_others(self) -> None:
        """Stop everybody else from committing; existing commits still count.

        Raises:
            StoreError: The store does not take it.
        """
        nobody = Claims.of_this_process(self.claims, LAST_STEP)
        self.objects.put(claims.NAME, nobody.to_bytes())

    def prepare(self, until: int) -> Claims:
        """What ``take`` is to write so that this process owns the run.

        Args:
            until: The last step that still counts; -1 for none.
        """
        former = self.claims
        if former is not None:
            every: list[Committed] = [*self.found.values(), *self.unreadable.values()]
            former = former.without({each.uploaded.claim for each in every})
        return Claims.of_this_process(former, until)

    def take(self, mine: Claims) -> None:
        """Take over the run.

        Raises:
            StoreError: The store does not take it.
        """
        self.objects.put(claims.NAME, mine.to_bytes())
        self.claims, self._mine, self._count = mine, mine.owner, 0
        self.found = _of(mine, self.found)
        self.unreadable = _of(mine, self.unreadable)

    def is_mine(self, sent: Transfer) -> bool:
        """Whether an upload goes on under the claim that owns the run."""
        uploaded = Uploaded.parse(sent.prefix)
        return uploaded is not None and uploaded.claim == self._mine

    def has(self, near: Manifest) -> bool:
        """Whether this very checkpoint is in the store."""
        far = self.found.get(near.progress.step)
        return far is not None and far.manifest.to_bytes() == near.to_bytes()

    def transfer(self, near: Checkpoint) -> Transfer:
        """The upload of a checkpoint, under its own name."""
        assert self._mine is not None
        self._count += 1
        name = Uploaded(near.step, self._mine, self._count)
        return Transfer(near, str(name), self.objects)

    def commit(self, sent: Transfer) -> None:
        """Commit an upload as a checkpoint of the run, and delete a former one.

        Raises:
            DirectoryInUseError: Another attempt has claimed the run since.
            GoneError: The local checkpoint no longer exists.
            StoreError: The store fails.
        """
        manifest = sent.commit(self.require_mine)
        uploaded = Uploaded.parse(sent.prefix)
        assert uploaded is not None
        former = self.unreadable.pop(uploaded.step, self.found.get(uploaded.step))
        self.found[uploaded.step] = FarCheckpoint(uploaded, manifest)
        self.objects.put(_NEWEST, sent.prefix.encode())
        if former is not None:
            self._delete(former)

    def fetch(self, step: int, directory: Path) -> None:
        """Download a checkpoint into a local directory.

        Raises:
            DamageError: It does not match its manifest.
            NotSupportedError: A later version of this library wrote it.
            StoreError: The store fails.
            CheckpointWriteError: The local file system does.
        """
        if step in self.unreadable:
            why = self.unreadable[step].why
            raise why if isinstance(why, NotSupportedError) else DamageError([str(why)])
        far = self.found[step]
        fetch(far.manifest, str(far.uploaded), self.objects, directory)

    def prune(self, keep: KeepPolicy, upto: int) -> list[int]:
        """Delete what the policy does not select; never the newest.

        Args:
            keep: The policy.
            upto: The step of the newest that it is about.

        Raises:
            StoreError: The store fails.
        """
        known = {step: far for step, far in self.found.items() if step <= upto}
        kept = keep.select(known.values()) | set(sorted(known)[-1:])
        doomed = sorted(known.keys() - kept)
        if doomed and self._mine is not None:
            self.require_mine()
        for step in doomed:
            self._delete(self.found.pop(step))
        return doomed

    def delete_unfinished(self) -> None:
        """Delete what killed attempts left of uploads.

        Raises:
            StoreError: The store fails.
        """
        of = {name: Uploaded.parse(name.partition("/")[0]) for name in self.names}
        whole = {of[name] for name in self.names if name.endswith(f"/{MANIFEST}")}
        whole |= {far.uploaded for far in self.found.values()}
        self.objects.delete(
            name
            for name, uploaded in of.items()
            if uploaded and uploaded not in whole and uploaded.claim != self._mine
        )
        self.names = {}

    def require_mine(self) -> None:
        """Raise where another attempt has claimed the run since.

        Raises:
            DirectoryInUseError: One has.
            StoreError: The store does not say.
        """
        now = self._read_claims()
        if now is None:
            gone = f"{claims.NAME} of this run is gone from {self.objects.address}"
            raise StoreError(gone, transient=False)
        if now.owner == self._mine:
            return
        raise DirectoryInUseError(
            "Another run has taken over this checkpoint directory.",
            received=f"{self.objects.address} now belongs to process {now.pid} on "
            f"{now.host}, since {now.started}",
            hint="Let that run continue: this one stops. Two runs need two "
            "directories.",
        )

    def _read_claims(self) -> Claims | None:
        try:
            return Claims.from_bytes(self.objects.get(claims.NAME, claims.LIMIT))
        except FileNotFoundError:
            return None
        except SchemaError as error:
            raise CorruptCheckpointError(
                f"{claims.NAME} is damaged, so it is not known which checkpoints in "
                "the object store are part of the run.",
                received=f"{self.objects.address}/{claims.NAME}: {error}",
                hint="Restore a former version of that object; or copy the checkpoint "
                "that you want to another directory and go on from there.",
            ) from None

    def _part_of_the_run(self) -> list[Uploaded]:
        """For each step, the last one committed."""
        ranked: dict[int, tuple[tuple[int, int], Uploaded]] = {}
        for name in [*self.names, f"{self._newest()}/{MANIFEST}"]:
            directory, _, inner = name.partition("/")
            uploaded = Uploaded.parse(directory)
            if inner != MANIFEST or uploaded is None or self.claims is None:
                continue
            rank = self.claims.rank(uploaded)
            best = ranked.get(uploaded.step)
            if rank is not None and (best is None or rank > best[0]):
                ranked[uploaded.step] = rank, uploaded
        return [uploaded for _, uploaded in ranked.values()]

    def _newest(self) -> str | None:
        try:
            return self.objects.get(_NEWEST, 1000).decode(errors="replace")
        except FileNotFoundError:
            return None

    def _look_at(self, uploaded: Uploaded) -> None:
        found = look_at(uploaded, self.objects)
        if isinstance(found, FarCheckpoint):
            self.found[uploaded.step] = found
        elif found is not None:
            self.unreadable[uploaded.step] = found

    def _delete(self, far: Committed) -> None:
        """The commit first; then what is there, whatever the manifest says."""
        name = str(far.uploaded)
        self.objects.delete([f"{name}/{MANIFEST}"])
        left = [f"{name}/{each}" for each in self.objects.names(name)]
        at_once(lambda each: self.objects.delete([each]), left, _SMALL)


def _of(run: Claims, known: dict[int, K]) -> dict[int, K]:
    return {
        step: each
        for step, each in known.items()
        if run.rank(each.uploaded) is not None
    }
