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

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from resilient.errors import (
    CorruptCheckpointError,
    DirectoryInUseError,
    NotSupportedError,
)
from resilient.policies import KeepPolicy
from resilient.serialization.schema import SchemaError
from resilient.storage import commit, files
from resilient.storage.checkpoint import Checkpoint, DamageError
from resilient.storage.layout import LAST_STEP, MANIFEST, committed_name, staging_name
from resilient.storage.manifest import Manifest, ManifestError
from resilient.storage.remote import claims
from resilient.storage.remote.claims import Claims, Uploaded
from resilient.storage.remote.objects import Objects, StoreError

T = TypeVar("T")

_NEWEST = "newest"
_SMALL = 16  # small requests at the same time


class GoneError(Exception):
    """The local checkpoint is gone or has been replaced."""


@dataclass(frozen=True)
class Commit:
    """A commit in the store.

    Attributes:
        uploaded: Its name.
        content: What it is in the local directory, once it is fetched; or why that is
            unknown.
    """

    uploaded: Uploaded
    content: Checkpoint | DamageError | NotSupportedError


class RemoteRun:
    """A run in an object store, as of the last ``refresh``.

    Args:
        objects: Below its address.
        directory: The local directory.

    Attributes:
        claims: Who owns it; None if there is no run.
        mine: The claim of this process; None if it has made none.
        commits: Those that are part of the run, by step.
        names: Every object, with its size in bytes; empty once it is tidied.
    """

    def __init__(self, objects: Objects, directory: Path) -> None:
        self.objects, self.directory = objects, directory
        self.claims: Claims | None = None
        self.commits: dict[int, Commit] = {}
        self.names: dict[str, int] = {}
        self.mine: str | None = None
        self._count = 0
        self._unfinished: tuple[Checkpoint, Uploaded] | None = None

    def with_own_client(self) -> "RemoteRun":
        """A copy with requests of its own, which nobody here owns."""
        copy = RemoteRun(
            Objects(self.objects.address, self.objects.upload), self.directory
        )
        copy.commits = dict(self.commits)
        return copy

    @property
    def checkpoints(self) -> dict[int, Checkpoint]:
        """The checkpoints whose manifests can be read, by step."""
        found = {step: each.content for step, each in {**self.commits}.items()}
        return {s: each for s, each in found.items() if isinstance(each, Checkpoint)}

    def refresh(self) -> None:
        """List the store's contents.

        Raises:
            StoreError: The store does not say.
            CorruptCheckpointError: ``claims.json`` is something else.
        """
        self.claims, self.names = self._read_claims(), self.objects.names()
        found = dict[int, Commit]()
        at_once(lambda each: self._read(each, found), self._part_of_the_run(), _SMALL)
        self.commits = found

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
        used = {each.uploaded.claim for each in self.commits.values()}
        former = None if self.claims is None else self.claims.without_unused(used)
        taken = Claims.following(former, until, mine)
        self.objects.put(claims.NAME, taken.to_bytes())
        self.claims, self.mine = taken, mine
        self._count, self._unfinished = 0, None
        self.commits = {
            step: each
            for step, each in self.commits.items()
            if taken.rank(each.uploaded) is not None
        }

    def has(self, local: Manifest) -> bool:
        """Whether this very checkpoint is in the store."""
        found = self.checkpoints.get(local.progress.step)
        return found is not None and found.to_bytes() == local.to_bytes()

    def upload(self, local: Checkpoint, is_wanted: Callable[[], bool]) -> None:
        """Upload a checkpoint, commit it as one of the run, and delete a former one.

        If the same upload failed before, files of which the store has every byte are
        not sent once more.

        Args:
            local: The checkpoint.
            is_wanted: Whether to go on.

        Raises:
            DirectoryInUseError: Another attempt has claimed the run since.
            GoneError: The checkpoint is not there, or not wanted, any more.
            StoreError: The store fails.
        """
        assert self.mine is not None
        sent = dict[str, int]()
        if self._unfinished is not None and self._unfinished[0] is local:
            uploaded = self._unfinished[1]
            sent = self.objects.names(str(uploaded))
        else:
            self._count += 1
            uploaded = Uploaded(local.step, self.mine, self._count)
            self._unfinished = local, uploaded

        def send(name: str) -> None:
            if not is_wanted():
                raise GoneError(f"{local.path} is not wanted any more")
            self.objects.send(local.path / name, f"{uploaded}/{name}")

        rest = [name for name, of in local.files.items() if sent.get(name) != of.size]
        try:
            at_once(send, rest, self.objects.upload.connections)
            self.check_owner()
            raw = files.read_file(local.path, MANIFEST, files.JSON_BYTES)
        except FileNotFoundError as error:
            raise GoneError(error) from None
        if raw != local.to_bytes():
            raise GoneError(f"{local.path} was replaced")
        if not self.objects.create(f"{uploaded}/{MANIFEST}", raw):
            raise DirectoryInUseError(
                "Something else has written a commit of this run.",
                received=f"{self.objects.address}/{uploaded}/{MANIFEST}",
                hint="Let nothing but one run write there.",
            )
        former = self.commits.get(local.step)
        self.commits[local.step] = Commit(uploaded, local)
        self.objects.put(_NEWEST, str(uploaded).encode())
        if former is not None:
            self._delete(former)

    def fetch(self, step: int) -> None:
        """Make a checkpoint one of the local directory, all of it or nothing.

        Raises:
            DamageError: It does not match its manifest.
            NotSupportedError: A later version of this library wrote it.
            StoreError: The store fails.
            CheckpointWriteError: The local file system does.
        """
        uploaded, wanted = self.commits[step].uploaded, self.commits[step].content
        if not isinstance(wanted, Checkpoint):
            raise wanted
        path = self.directory / staging_name(step)

        def receive(name: str) -> None:
            try:
                nbytes = wanted.files[name].size
                self.objects.receive(f"{uploaded}/{name}", path / name, nbytes)
            except FileNotFoundError:
                raise DamageError([f"{name} is missing"]) from None

        with commit.staging(path, wanted.progress) as staging:
            _make_room(path, wanted.files)
            at_once(receive, wanted.files, self.objects.upload.connections)
            written = staging.seal(wanted.files)
            problems = [
                f"{name} does not match its checksum"
                for name, record in wanted.files.items()
                if not written[name].matches(record)
            ]
            if problems:
                raise DamageError(problems)
            commit.publish(staging, wanted)

    def prune(self, keep: KeepPolicy, upto: int) -> list[int]:
        """Delete what the policy does not select; never the newest.

        Args:
            keep: The policy.
            upto: The step of the newest that it is about.

        Raises:
            StoreError: The store fails.
        """
        known = {step: each for step, each in self.checkpoints.items() if step <= upto}
        kept = keep.select(known.values()) | set(sorted(known)[-1:])
        doomed = sorted(known.keys() - kept)
        if doomed and self.mine is not None:
            self.check_owner()
        for step in doomed:
            self._delete(self.commits.pop(step))
        return doomed

    def delete_unfinished(self) -> None:
        """Delete what killed attempts wrote of uploads, unless it was done before.

        Raises:
            StoreError: The store fails.
        """
        whole = self._whole() | {each.uploaded for each in self.commits.values()}
        of = {name: Uploaded.parse(name.partition("/")[0]) for name in self.names}
        rest = [
            name
            for name, uploaded in of.items()
            if uploaded and uploaded not in whole and uploaded.claim != self.mine
        ]
        at_once(self.objects.delete, rest, _SMALL)
        self.names = {}

    def check_claimed(self) -> None:
        """Raise CorruptCheckpointError where there are commits, but no claims."""
        if self.claims is None and self._whole():
            raise self._unclaimed("not there")

    def check_owner(self) -> None:
        """Raise where another attempt has claimed the run since.

        Raises:
            DirectoryInUseError: One has.
            StoreError: The store does not say.
        """
        now = self._read_claims()
        if now is None:
            gone = f"{claims.NAME} of this run is gone from {self.objects.address}"
            raise StoreError(gone, transient=False)
        if now.owner == self.mine:
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
            raise self._unclaimed(str(error)) from None

    def _unclaimed(self, why: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{claims.NAME} is damaged or gone, so it is not known which checkpoints "
            "in the object store are part of the run.",
            received=f"{self.objects.address}/{claims.NAME}: {why}",
            hint="If this is a directory on a disk that no address wrote, or a copy of "
            "one, pass its path. Otherwise restore a former version of that object; or "
            "copy the checkpoint that you want to another directory and go on there.",
        )

    def _part_of_the_run(self) -> list[Uploaded]:
        """For each step, the last one committed."""
        if self.claims is None:
            return []
        ranked = sorted(
            (rank, uploaded)
            for uploaded in {*self._whole(), Uploaded.parse(self._newest())}
            if uploaded and (rank := self.claims.rank(uploaded)) is not None
        )
        return [*{uploaded.step: uploaded for _, uploaded in ranked}.values()]

    def _whole(self) -> set[Uploaded | None]:
        """The uploads that have a manifest."""
        whole = [name for name in self.names if name.endswith(f"/{MANIFEST}")]
        return {Uploaded.parse(name.removesuffix(f"/{MANIFEST}")) for name in whole}

    def _newest(self) -> str:
        try:
            return self.objects.get(_NEWEST, 1000).decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _read(self, uploaded: Uploaded, found: dict[int, Commit]) -> None:
        """Read a commit, unless it has been deleted, whatever a listing says."""
        step = uploaded.step
        try:
            raw = self.objects.get(f"{uploaded}/{MANIFEST}", files.JSON_BYTES)
            manifest = Manifest.from_bytes(raw)
            if manifest.progress.step != step:
                raise ManifestError(f"belongs to step {manifest.progress.step:,}")
        except FileNotFoundError:
            return
        except ManifestError as error:
            found[step] = Commit(uploaded, DamageError([str(error)]))
        except NotSupportedError as error:
            found[step] = Commit(uploaded, error)
        else:
            path = self.directory / committed_name(step)
            found[step] = Commit(uploaded, Checkpoint.of(manifest, path))

    def _delete(self, doomed: Commit) -> None:
        """The commit first; then what is there, whatever the manifest says."""
        name = str(doomed.uploaded)
        self.objects.delete(f"{name}/{MANIFEST}")
        rest = [f"{name}/{each}" for each in self.objects.names(name)]
        at_once(self.objects.delete, rest, _SMALL)


def _make_room(directory: Path, names: Iterable[str]) -> None:
    for name in names:
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            raise DamageError([f"{name} cannot lie beside the others"]) from None


def at_once(function: Callable[[T], object], items: Iterable[T], threads: int) -> None:
    """Call a function for each item, several at a time; the first error ends it."""
    rest, failed = deque(items), list[BaseException]()

    def work() -> None:
        while not failed:
            try:
                item = rest.popleft()
            except IndexError:
                return
            try:
                function(item)
            except BaseException as error:  # raised below, in the caller's thread
                failed.append(error)

    # Not a pool, whose threads the end of a process waits for.
    workers = [
        threading.Thread(target=work, name="resilient-store", daemon=True)
        for _ in range(min(threads, len(rest)))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]
