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

from dataclasses import dataclass
from pathlib import Path

from resilient.errors import (
    CorruptCheckpointError,
    DirectoryInUseError,
    NotSupportedError,
)
from resilient.policies import KeepPolicy
from resilient.serialization.schema import SchemaError
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.files import JSON_BYTES
from resilient.storage.layout import LAST_STEP, MANIFEST, committed_name
from resilient.storage.manifest import Manifest, ManifestError
from resilient.storage.remote import claims
from resilient.storage.remote.claims import Claims, Uploaded
from resilient.storage.remote.objects import Objects, StoreError
from resilient.storage.remote.transfer import Transfer, at_once, fetch

_NEWEST = "newest"
_SMALL = 16  # small requests at the same time


@dataclass(frozen=True)
class Commit:
    """A commit in the store.

    Attributes:
        uploaded: Its name.
        checkpoint: What it is in the local directory, once it is fetched; None if that
            is unknown.
        why: Why it is unknown.
    """

    uploaded: Uploaded
    checkpoint: Checkpoint | None = None
    why: ManifestError | NotSupportedError | None = None


class Far:
    """A run in an object store, as of the last ``refresh``.

    Args:
        objects: Below its address.
        directory: The local directory.

    Attributes:
        claims: Who owns it; None if there is no run.
        found: The commits that are part of the run, by step.
        names: Every object, with its size in bytes.
    """

    def __init__(self, objects: Objects, directory: Path) -> None:
        self.objects, self._directory = objects, directory
        self.claims: Claims | None = None
        self.found: dict[int, Commit] = {}
        self.names: dict[str, int] = {}
        self._mine: str | None = None
        self._count = 0

    def with_own_client(self) -> "Far":
        """The same, with requests of its own, and owned by nobody here."""
        far = Far(Objects(self.objects.address, self.objects.upload), self._directory)
        far.found = dict(self.found)
        return far

    @property
    def checkpoints(self) -> dict[int, Checkpoint]:
        """The checkpoints whose manifests can be read, by step."""
        known = {step: each.checkpoint for step, each in {**self.found}.items()}
        return {step: each for step, each in known.items() if each is not None}

    def refresh(self) -> None:
        """List the store's contents.

        Raises:
            StoreError: The store does not say.
            CorruptCheckpointError: ``claims.json`` is something else.
        """
        self.found = {}
        self.claims, self.names = self._read_claims(), self.objects.names()
        self._count = 0
        at_once(self._read, self._part_of_the_run(), _SMALL)

    def stop_others(self) -> None:
        """Stop everybody else from committing; existing commits still count.

        Raises:
            StoreError: The store does not take it.
        """
        nobody = Claims.following(self.claims, LAST_STEP, claims.new_id())
        self.objects.put(claims.NAME, nobody.to_bytes())

    def take(self, mine: str, until: int) -> None:
        """Take over the run.

        Args:
            mine: The claim to own it under.
            until: The last step of former claims that still counts; -1 for none.

        Raises:
            StoreError: The store does not take it.
        """
        used = {each.uploaded.claim for each in self.found.values()}
        former = None if self.claims is None else self.claims.without_unused(used)
        taken = Claims.following(former, until, mine)
        self.objects.put(claims.NAME, taken.to_bytes())
        self.claims, self._mine, self._count = taken, mine, 0
        self.found = {
            step: each
            for step, each in self.found.items()
            if taken.rank(each.uploaded) is not None
        }

    def is_mine(self, sent: Transfer) -> bool:
        """Whether an upload goes on under the claim that owns the run."""
        return sent.uploaded.claim == self._mine

    def has(self, near: Manifest) -> bool:
        """Whether this very checkpoint is in the store."""
        far = self.checkpoints.get(near.progress.step)
        return far is not None and far.to_bytes() == near.to_bytes()

    def transfer(self, near: Checkpoint) -> Transfer:
        """The upload of a checkpoint, under its own name."""
        assert self._mine is not None
        self._count += 1
        return Transfer(
            near, Uploaded(near.step, self._mine, self._count), self.objects
        )

    def commit(self, sent: Transfer) -> None:
        """Commit an upload as a checkpoint of the run, and delete a former one.

        Raises:
            DirectoryInUseError: Another attempt has claimed the run since.
            GoneError: The local checkpoint no longer exists.
            StoreError: The store fails.
        """
        self.check_mine()
        sent.commit()
        former = self.found.get(sent.near.step)
        self.found[sent.near.step] = Commit(sent.uploaded, sent.near)
        self.objects.put(_NEWEST, str(sent.uploaded).encode())
        if former is not None:
            self._delete(former)

    def fetch(self, step: int) -> None:
        """Download a checkpoint into the local directory.

        Raises:
            DamageError: It does not match its manifest.
            NotSupportedError: A later version of this library wrote it.
            StoreError: The store fails.
            CheckpointWriteError: The local file system does.
        """
        far = self.found[step]
        if far.checkpoint is None:
            unknown = far.why
            raise (
                unknown
                if isinstance(unknown, NotSupportedError)
                else DamageError([str(unknown)])
            )
        fetch(far.checkpoint, str(far.uploaded), self.objects)

    def prune(self, keep: KeepPolicy, upto: int) -> list[int]:
        """Delete what the policy does not select; never the newest.

        Args:
            keep: The policy.
            upto: The step of the newest that it is about.

        Raises:
            StoreError: The store fails.
        """
        known = {step: far for step, far in self.checkpoints.items() if step <= upto}
        kept = keep.select(known.values()) | set(sorted(known)[-1:])
        doomed = sorted(known.keys() - kept)
        if doomed and self._mine is not None:
            self.check_mine()
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

    def check_mine(self) -> None:
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

    def _read(self, uploaded: Uploaded) -> None:
        """Read a commit, unless it has been deleted, whatever a listing says."""
        step = uploaded.step
        try:
            raw = self.objects.get(f"{uploaded}/{MANIFEST}", JSON_BYTES)
            manifest = Manifest.from_bytes(raw)
            if manifest.progress.step != step:
                raise ManifestError(f"belongs to step {manifest.progress.step:,}")
        except FileNotFoundError:
            return
        except (ManifestError, NotSupportedError) as error:
            self.found[step] = Commit(uploaded, why=error)
        else:
            checkpoint = Checkpoint.of(manifest, self._directory / committed_name(step))
            self.found[step] = Commit(uploaded, checkpoint)

    def _delete(self, far: Commit) -> None:
        """The commit first; then what is there, whatever the manifest says."""
        name = str(far.uploaded)
        self.objects.delete([f"{name}/{MANIFEST}"])
        left = [f"{name}/{each}" for each in self.objects.names(name)]
        at_once(lambda each: self.objects.delete([each]), left, _SMALL)
