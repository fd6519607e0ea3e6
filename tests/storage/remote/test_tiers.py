"""Near and far: where a run goes on, and what happens to a copy that fell behind."""

import builtins
import contextlib
import errno
import json
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.checkpoint_samples import (
    commit,
    filled,
    holds,
    newest_good,
    verified,
    writer,
)
from support.newer import make_newer

from resilient.errors import (
    CheckpointMismatchError,
    CheckpointReadError,
    CheckpointWriteError,
    CorruptCheckpointError,
    DirectoryInUseError,
    NotSupportedError,
)
from resilient.policies import best, latest
from resilient.progress import Progress
from resilient.storage.layout import committed_steps
from resilient.storage.manifest import FileRecord, Manifest
from resilient.storage.remote import remote_run as remote_run_module
from resilient.storage.remote.objects import Objects, StoreError
from resilient.storage.remote.options import Upload
from resilient.storage.stores import store_of

pytestmark = pytest.mark.once

QUICK, TWO = Upload(patience=0.5), latest(2)


class Machine:
    """A local directory, and the store as somebody on that machine opens it."""

    def __init__(self, folder, name, upload=QUICK):
        self.near, self.address = folder / name, f"file://{folder}/far"
        self.store = store_of(self.address, self.near, upload)

    def opened(self, **options):
        return self.store.opened(**options)

    def save(self, *steps, keep=TWO, version=0):
        for step in steps:
            commit(
                self.store,
                Progress(step, 0, step),
                writer(step, version),
                metrics={"loss": float(step % 3)},
                finished=False,
                environment={},
            )
            self.store.prune(keep)
            uploaded(self.store)

    def newest(self):
        """Step and content of what a run here would resume from."""
        found = newest_good(self.store)
        return None if found is None else (found.step, holds(found))


def uploaded(store, seconds=20):
    end = time.monotonic() + seconds
    while not store.uploaded(0.05):
        assert time.monotonic() < end, "it takes too long"
    return store.not_uploaded()


def far_steps(folder):
    names = [p.parent.name for p in Path(folder, "far").glob("step-*/manifest.json")]
    return sorted(int(name.split("-")[1]) for name in names)


def test_a_machine_whose_disk_is_new_goes_on(tmp_path):
    first = Machine(tmp_path, "first")
    with first.opened():
        first.save(1, 2, 3)
    assert far_steps(tmp_path) == [2, 3]
    second = Machine(tmp_path, "second")
    with second.opened():
        assert second.newest() == (3, True)
        second.save(4)
    assert far_steps(tmp_path) == [3, 4]


def test_a_copy_that_fell_behind_follows_the_store(tmp_path):
    """Machine A, then B, then A again: what only A has is not part of the run."""
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1, 2)
    with b.opened():
        assert b.newest() == (2, True)
        b.save(3)
    with a.opened():
        assert committed_steps(a.near) == [2]  # 1 is in neither any more
        assert a.newest() == (3, True)
        a.save(4)
    with b.opened():
        assert b.newest() == (4, True)


def test_what_was_not_uploaded_is_where_a_run_goes_on(tmp_path, monkeypatch):
    a = Machine(tmp_path, "a")
    with a.opened():
        a.save(1)
        monkeypatch.setattr(Objects, "put", refuse)
        a.save(2)
        assert "step 2: only in" in a.store.not_uploaded()
    monkeypatch.undo()
    assert far_steps(tmp_path) == [1]
    with a.opened():
        assert a.newest() == (2, True)
        assert not uploaded(a.store)
    assert far_steps(tmp_path) == [1, 2]


def refuse(*_arguments):
    raise StoreError("SlowDown", transient=True)


def test_training_goes_on_while_the_store_is_away(tmp_path, monkeypatch, caplog):
    a = Machine(tmp_path, "a")
    with a.opened():
        a.save(1)
        monkeypatch.setattr(Objects, "put", refuse)
        a.save(2, 3, 4, keep=latest(3))
        assert caplog.text.count("The object store does not accept checkpoints") == 1
        assert committed_steps(a.near) == [2, 3, 4]  # held, though 2 are kept near
        monkeypatch.undo()
        a.save(5, keep=latest(3))
        assert "accepts checkpoints again" in caplog.text
    assert far_steps(tmp_path) == [3, 4, 5]
    assert committed_steps(a.near) == [4, 5]


def test_a_run_begins_without_the_store_where_it_has_a_copy(
    tmp_path, monkeypatch, caplog
):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1)
    monkeypatch.setattr(Objects, "names", refuse)
    with (
        pytest.raises(CheckpointReadError, match="store cannot be used right now"),
        b.opened(),
    ):
        pass
    with a.opened():
        assert "does not answer" in caplog.text
        assert a.newest() == (1, True)
        monkeypatch.undo()
        a.save(2)
    assert far_steps(tmp_path) == [1, 2]


def test_a_run_that_was_taken_over_stops_and_spoils_nothing(tmp_path):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1, 2)
        with b.opened():
            assert b.newest() == (2, True)
            b.save(3)
            with pytest.raises(DirectoryInUseError, match="has taken over"):
                a.save(3, version=1)
            with pytest.raises(DirectoryInUseError):
                a.save(4)
            b.save(4)
    c = Machine(tmp_path, "c")
    with c.opened():
        assert c.newest() == (4, True)


def test_what_a_run_commits_that_does_not_know_of_its_end_is_no_part(
    tmp_path, monkeypatch
):
    """The other one takes over between the question and the commit."""
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1)
        monkeypatch.setattr(remote_run_module.RemoteRun, "check_owner", lambda _: None)
        with b.opened():
            a.save(9)
            monkeypatch.undo()
            b.save(2)
    assert far_steps(tmp_path) == [1, 2, 9]
    with Machine(tmp_path, "c").opened():
        pass
    c = Machine(tmp_path, "d")
    with c.opened():
        assert c.newest() == (2, True)


@pytest.mark.parametrize("when", ["stop_others", "take"])
def test_what_a_run_does_while_it_is_taken_over_is_known(tmp_path, monkeypatch, when):
    """It keeps one checkpoint: with the next one, it deletes what others found."""
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    change = getattr(remote_run_module.RemoteRun, when)

    def after_another_save(*arguments):
        monkeypatch.undo()
        with contextlib.suppress(DirectoryInUseError):
            a.save(2, keep=latest(1))
        change(*arguments)

    with a.opened():
        a.save(1, keep=latest(1))
        monkeypatch.setattr(remote_run_module.RemoteRun, when, after_another_save)
        with b.opened():
            assert b.newest() == (2 if when == "stop_others" else 1, True)
            b.save(3)
    c = Machine(tmp_path, "c")
    with c.opened():
        assert c.newest() == (3, True)


@pytest.mark.parametrize("refused", [1, 2, 3])
def test_a_store_that_takes_no_claim_is_not_gone_on_without(
    tmp_path, monkeypatch, refused
):
    """Where the local directory has fallen behind; nothing is lost, either."""
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1)
    with b.opened():
        b.save(2)
    put, count = Objects.put, []

    def refusing(self, name, content):
        count.append(name)
        return refuse() if len(count) >= refused else put(self, name, content)

    monkeypatch.setattr(Objects, "put", refusing)
    if refused < 3:
        with pytest.raises(CheckpointReadError), a.opened():
            pass
    else:
        with a.opened():
            assert a.newest() == (2, True)
    monkeypatch.undo()
    with a.opened():
        assert a.newest() == (2, True)
        a.save(3)
    with b.opened():
        assert b.newest() == (3, True)


def test_a_local_run_moves_into_a_store_that_refused_it_once(tmp_path, monkeypatch):
    filled(tmp_path / "a", 1)
    a = Machine(tmp_path, "a")
    monkeypatch.setattr(Objects, "put", refuse)
    with pytest.raises(CheckpointReadError), a.opened():
        pass
    monkeypatch.undo()
    with a.opened():
        assert a.newest() == (1, True)
        assert not uploaded(a.store)
    assert far_steps(tmp_path) == [1]


@pytest.mark.parametrize("at", ["events.jsonl", "remote.json"])
def test_a_full_local_disk_is_told_as_such(tmp_path, monkeypatch, at):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        (a.near / "events.jsonl").write_text("")
        a.save(1)
        assert not uploaded(a.store)

    def full(path, *arguments, **options):
        if str(path).startswith(f"{b.near}/{at}"):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return opened(path, *arguments, **options)

    opened = builtins.open
    monkeypatch.setattr("builtins.open", full)
    with (
        pytest.raises(CheckpointWriteError, match=r"local copy .* No space left") as e,
        b.opened(),
    ):
        pass
    monkeypatch.undo()
    assert str(b.near) in str(e.value)
    with b.opened():
        assert b.newest() == (1, True)


def test_what_is_abandoned_is_no_part_of_the_run(tmp_path):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1, 2, 3, keep=latest(3))
        verified(a.store, 1)
        a.store.discard_after(1)
        a.save(2, version=1, keep=latest(3))
    with b.opened():
        found = newest_good(b.store)
        assert found.step == 2
        assert holds(found, 1)
        b.store.discard_all()
        b.save(1, version=2)
    with Machine(tmp_path, "c").opened():
        pass
    d = Machine(tmp_path, "d")
    with d.opened():
        found = newest_good(d.store)
        assert (found.step, holds(found, 2)) == (1, True)


def abandon_unknown_to_the_store(machine, monkeypatch):
    """Save three steps, and abandon the last two."""
    with machine.opened():
        machine.save(1, 2, 3, keep=latest(9))
        monkeypatch.setattr(Objects, "put", refuse)
        machine.store.discard_after(1)
    monkeypatch.undo()


def test_a_kill_before_the_store_knows_what_is_abandoned(tmp_path, monkeypatch):
    a = Machine(tmp_path, "a")
    abandon_unknown_to_the_store(a, monkeypatch)
    with a.opened():
        assert a.newest() == (1, True)


def test_what_was_abandoned_before_another_machine_went_on_abandons_nothing(
    tmp_path, monkeypatch
):
    """The store did not know of it, and what the other machine did is the run."""
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    abandon_unknown_to_the_store(a, monkeypatch)
    with b.opened():
        assert b.newest() == (3, True)
        b.save(4, keep=latest(9))
    with a.opened():
        assert a.newest() == (4, True)
        a.save(5, keep=latest(9))
    assert far_steps(tmp_path) == [1, 2, 3, 4, 5]


def test_a_run_that_was_taken_over_does_not_take_it_back_by_a_rollback(tmp_path):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1, 2, keep=latest(9))
        with b.opened():
            b.save(3, keep=latest(9))
            a.store.discard_after(1)
            with pytest.raises(DirectoryInUseError, match="has taken over"):
                a.save(2, version=1, keep=latest(9))
            b.save(4, keep=latest(9))
    c = Machine(tmp_path, "c")
    with c.opened():
        assert c.newest() == (4, True)


def test_a_claim_whose_answer_is_lost_is_made_once(tmp_path, monkeypatch):
    a, b, put = Machine(tmp_path, "a"), Machine(tmp_path, "b"), Objects.put

    def lose(self, name, content):
        put(self, name, content)
        refuse()

    with a.opened():
        a.save(1, keep=latest(9))
    monkeypatch.setattr(Objects, "put", lose)
    with a.opened():
        monkeypatch.undo()
        a.save(2, 3, keep=latest(9))
    with b.opened():
        assert b.newest() == (3, True)


@pytest.mark.parametrize("where", ["near", "far"])
def test_the_copy_in_the_other_place_is_used_where_one_is_damaged(tmp_path, where):
    a = Machine(tmp_path, "a")
    with a.opened():
        a.save(1, 2)
    folder = a.near if where == "near" else tmp_path / "far"
    (manifest,) = folder.glob("step-00000002*/run.json")
    manifest.write_bytes(b"x" + manifest.read_bytes()[1:])
    with a.opened():
        assert a.newest() == (2, True)


@pytest.mark.parametrize("what", ["run.json", "manifest.json", "variables/weights.bin"])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_machine_without_a_copy_uses_the_one_before(tmp_path, what, how):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1, 2)
    (path,) = (tmp_path / "far").glob(f"step-00000002*/{what}")
    raw = path.read_bytes()
    path.unlink() if how == "gone" else path.write_bytes(
        b"x" + raw[1:] if how == "flipped" else raw[:-1]
    )
    told = []
    with b.opened():
        found = newest_good(b.store, lambda *each: told.append(each))
        assert found.step == 1
    assert len(told) == (not (what == "manifest.json" and how == "gone"))


def test_without_an_intact_one_there_is_no_fresh_start(tmp_path):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1)
    (path,) = (tmp_path / "far").glob("step-*/run.json")
    path.write_bytes(b"")
    with b.opened(), pytest.raises(CorruptCheckpointError):
        b.newest()
    (tmp_path / "far" / "claims.json").write_text("[]")
    with (
        pytest.raises(CorruptCheckpointError, match=r"claims\.json is damaged"),
        Machine(tmp_path, "c").opened(),
    ):
        pass


def test_a_listing_that_lags_hides_nothing(tmp_path, monkeypatch):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1)
        before = a.store.objects.names()
        a.save(2)
    monkeypatch.setattr(Objects, "names", lambda _: before)
    with b.opened():
        assert b.newest() == (2, True)


def test_keep_is_for_each_tier_by_itself(tmp_path):
    a = Machine(tmp_path, "a", Upload(keep_local=3))
    with a.opened():
        a.save(1, 2, 3, 4, 5, 6, keep=best(1, "loss", "min"))
    assert committed_steps(a.near) == [4, 5, 6]
    assert far_steps(tmp_path) == [3, 6]


def test_a_slow_link_skips_what_would_be_deleted_anyway(tmp_path, monkeypatch):
    a = Machine(tmp_path, "a")
    put, sent, there = Objects.put, [], set()

    def slow(self, name, content):
        sent.append(name)
        time.sleep(0.05)
        put(self, name, content)
        there.add(len(far_steps(tmp_path)))

    monkeypatch.setattr(Objects, "put", slow)
    with a.opened():
        for step in range(1, 30):
            commit(a.store, Progress(step, 0, step), writer(step))
            a.store.prune(latest(1))
        assert not uploaded(a.store)
    commits = [name for name in sent if name.endswith("/manifest.json")]
    assert 1 < len(commits) < 15
    assert there <= {0, 1, 2}  # what is superfluous is deleted on the way
    assert far_steps(tmp_path) == [29]


def test_a_directory_of_another_run_is_refused(tmp_path):
    a = Machine(tmp_path, "a")
    with a.opened():
        a.save(1)
    other = store_of(f"file://{tmp_path}/other", a.near, QUICK)
    refused = partial(pytest.raises, CheckpointMismatchError)
    with refused(match="a run in another place"), other.opened():
        pass
    for path in (tmp_path / "far").glob("*"):
        path.rename(tmp_path / path.name)
    with refused(match="no longer knows this run"), a.opened():
        pass
    with a.opened(anew=True):
        a.store.discard_all()


def test_checkpoints_that_nobody_claims_are_not_taken_for_a_new_run(tmp_path):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1)
    (tmp_path / "far" / "claims.json").unlink()
    with pytest.raises(CorruptCheckpointError, match="damaged or gone"), b.opened():
        pass
    with (
        pytest.raises(CheckpointMismatchError, match=r"has no claims\.json"),
        a.opened(),
    ):
        pass
    (a.near / "remote.json").unlink()  # as the error says
    with a.opened():
        assert a.newest() == (1, True)
        a.save(2)
    with b.opened():
        assert b.newest() == (2, True)


def test_a_start_elsewhere_that_found_nothing_supersedes_nothing(tmp_path):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1)
    for manifest in (tmp_path / "far").glob("step-*/manifest.json"):
        manifest.unlink()
    with b.opened():
        assert b.newest() is None
    with a.opened():
        assert a.newest() == (1, True)
        a.save(2)
    assert far_steps(tmp_path)[-1] == 2


def test_an_address_of_files_is_absolute_however_it_is_written(tmp_path):
    assert str(store_of(f"FILE://{tmp_path}/far")) == f"file://{tmp_path}/far"
    with pytest.raises(ValueError, match="no absolute path"):
        store_of("file://far")


def test_a_local_run_moves_into_a_store(tmp_path):
    filled(tmp_path / "a", 1)
    a = Machine(tmp_path, "a")
    with a.opened():
        assert a.newest() == (1, True)
        assert not uploaded(a.store)
    assert far_steps(tmp_path) == [1]
    json.loads((tmp_path / "far" / "claims.json").read_text())


def test_a_run_that_is_started_over_elsewhere_skips_nothing(tmp_path):
    a, b, c = (Machine(tmp_path, name) for name in "abc")
    with a.opened():
        (a.near / "rollbacks.json").write_text("[]")
        a.save(1)
    assert (tmp_path / "far" / "rollbacks.json").is_file()
    with b.opened(anew=True):
        b.store.discard_all()
        b.save(1)
    with c.opened():
        assert not (c.near / "rollbacks.json").exists()
        assert c.newest() == (1, True)


def test_a_store_that_takes_no_claim_twice_is_still_of_this_machine(
    tmp_path, monkeypatch
):
    a = Machine(tmp_path, "a")
    with a.opened():
        a.save(1)
    monkeypatch.setattr(Objects, "put", refuse)
    for step in (2, 3):
        with a.opened():
            a.save(step, keep=latest(9))
    monkeypatch.undo()
    with a.opened():
        assert a.newest() == (3, True)
        assert not uploaded(a.store)


@pytest.mark.parametrize(
    "files",
    [{"a": 2**45}, {"a": 1, "a/b": 1}, {"run.json": 2**50}],
    ids=["large", "nested", "both"],
)
def test_a_hostile_manifest_is_passed_over(tmp_path, files):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    with a.opened():
        a.save(1, 2)
    (path,) = (tmp_path / "far").glob("step-00000002*/manifest.json")
    manifest = Manifest.from_bytes(path.read_bytes())
    records = {name: FileRecord(size, "0" * 32) for name, size in files.items()}
    path.write_bytes(replace(manifest, files=records).to_bytes())
    began = time.monotonic()
    with b.opened():
        assert b.newest() == (1, True)
        b.save(3, 4)
    assert time.monotonic() - began < 20
    assert far_steps(tmp_path) == [3, 4]


def test_the_tiers_may_not_overlap(tmp_path):
    for near in ("far", "far/near", "."):
        with pytest.raises(ValueError, match="overlap"):
            Machine(tmp_path, near)


def test_whatever_a_request_raises_training_goes_on(tmp_path, monkeypatch, caplog):
    def surprise(*_arguments):
        raise RuntimeError("of a driver")

    a = Machine(tmp_path, "a")
    with a.opened():
        monkeypatch.setattr(Objects, "put", surprise)
        a.save(1)
        assert "RuntimeError: of a driver" in a.store.not_uploaded()
        monkeypatch.undo()
        a.save(2)
        assert not a.store.not_uploaded()
    assert far_steps(tmp_path) == [1, 2]


def test_a_local_copy_that_is_gone_is_told(tmp_path, monkeypatch, caplog):
    a = Machine(tmp_path, "a")
    with a.opened():
        monkeypatch.setattr(Objects, "send", refuse)
        a.save(1)
        (a.near / "step-00000001" / "run.json").unlink()
        monkeypatch.undo()
        a.save(2)
    assert "Step 1 is not uploaded" in caplog.text
    assert far_steps(tmp_path) == [2]


@pytest.mark.parametrize("how", ["damaged", "of a later version"])
def test_a_commit_that_cannot_be_read_stays_part_of_the_run(tmp_path, how):
    """However often the run is opened meanwhile: its object may be restored."""
    a = Machine(tmp_path, "a")
    with a.opened():
        a.save(1)
    (path,) = (tmp_path / "far").glob("step-*/manifest.json")
    raw = path.read_bytes()
    path.write_bytes(b"?")
    if how == "of a later version":
        path.write_bytes(raw)
        make_newer(path.parent)
    error = CorruptCheckpointError if how == "damaged" else NotSupportedError
    for name in "bc":
        other = Machine(tmp_path, name)
        with other.opened(), pytest.raises(error):
            other.newest()
    path.write_bytes(raw)
    d = Machine(tmp_path, "d")
    with d.opened():
        assert d.newest() == (1, True)


def test_a_commit_takes_the_place_of_a_damaged_one(tmp_path):
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b", Upload(keep_local=1))
    with a.opened():
        a.save(1)
    (path,) = (tmp_path / "far").glob("step-*/manifest.json")
    path.write_bytes(b"?")
    with b.opened():
        b.save(1, 2)
        assert not path.exists()
        b.store.discard_after(1)
        assert b.newest() == (1, True)


def test_a_request_that_ends_after_the_run_says_nothing(tmp_path, monkeypatch, caplog):
    a, told = Machine(tmp_path, "a"), []
    sending, over = threading.Event(), threading.Event()

    def hang(*_arguments):
        sending.set()
        over.wait(20)
        refuse()

    with a.opened():
        a.store.report = lambda *each, **_: told.append(each)
        monkeypatch.setattr(Objects, "put", hang)
        commit(a.store, Progress(1, 0, 1), writer(1))
        assert sending.wait(20)
        thread = a.store._uploader._thread
    over.set()
    thread.join(20)
    assert not thread.is_alive()
    assert not told
    assert not caplog.records
