"""The store as the library uses it: commit, list, get, fall back, prune, start over."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.checkpoint_samples import (
    cannot_be_read,
    commit,
    filled,
    holds,
    leftovers,
    newest_good,
    save,
    steps,
    verified,
    writer,
)
from support.manifests import change

from resilient import __version__
from resilient.errors import (
    CheckpointNotFoundError,
    CheckpointWriteError,
    CorruptCheckpointError,
    NotSupportedError,
)
from resilient.policies import best, latest
from resilient.progress import Progress
from resilient.storage import checkpoint, prune
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.layout import quarantined, replaced_name
from resilient.storage.manifest import Manifest
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.store import Store

pytestmark = pytest.mark.once


def test_a_commit_returns_what_the_directory_then_has(tmp_path):
    store = Store(tmp_path)
    committed = commit(
        store,
        Progress(25, 2, 5),
        writer(25),
        metrics={"loss": 0.1, "bad": float("nan"), "worse": float("inf")},
        finished=True,
        environment={"keras": "3.15.1", "größe": "ü"},
    )
    (found,) = store.checkpoints()
    assert found.to_bytes() == committed.to_bytes()
    assert (found.step, found.progress) == (25, Progress(25, 2, 5))
    assert found.finished is True
    assert repr(found.metrics) == "{'loss': 0.1, 'bad': nan, 'worse': inf}"
    assert found.environment == {
        "keras-resilient": __version__,
        "keras": "3.15.1",
        "größe": "ü",
    }
    assert found.nbytes == sum(len(b) for b in found_bytes(found).values())
    assert found.verify() == []
    assert holds(found)


def found_bytes(checkpoint):
    return {name: (checkpoint.path / name).read_bytes() for name in checkpoint.files}


def test_the_manifest_is_strict_json_that_other_tools_can_check(tmp_path):
    """It has the checksums of `xxhsum -H2`; NaN, which JSON lacks, is text."""
    import xxhash

    save(Store(tmp_path), 10, metrics={"loss": float("nan")})
    path = tmp_path / "step-00000010"

    def refuse(constant):
        raise AssertionError(constant)

    body = json.loads((path / "manifest.json").read_bytes(), parse_constant=refuse)
    assert body["schema"] == 1
    assert body["progress"] == {"step": 10, "epoch": 1, "batch": 0}
    for name, record in body["files"].items():
        data = (path / name).read_bytes()
        assert record == {
            "size": len(data),
            "xxh3_128": xxhash.xxh3_128(data).hexdigest(),
        }


def test_checkpoints_are_listed_by_step(tmp_path):
    assert steps(filled(tmp_path, 30, 10, 200_000_000, 20)) == [
        10,
        20,
        30,
        200_000_000,
    ]


def test_listing_opens_manifests_only(tmp_path, monkeypatch):
    store = filled(tmp_path, 10, 20)
    opened = []
    read_file = checkpoint.read_file

    def spy(directory, name, limit):
        opened.append(name)
        return read_file(directory, name, limit)

    monkeypatch.setattr(checkpoint, "read_file", spy)
    monkeypatch.setattr(checkpoint, "open_file", None)
    assert steps(store) == [10, 20]
    assert opened == ["manifest.json", "manifest.json"]


def test_a_directory_that_does_not_exist_has_no_checkpoints(tmp_path):
    store = Store(tmp_path / "not" / "yet")
    assert store.checkpoints() == []
    assert newest_good(store) is None
    assert remove_stale_staging(store.directory) == []
    assert store.discard_after(3) == []
    assert store.discard_all() == []
    assert not (tmp_path / "not").exists()


def test_names_that_are_not_ours_are_left_alone(tmp_path):
    store = filled(tmp_path, 10)
    names = [
        *("step-10", "step-0000001x", "step-00000005.bak", ".DS_Store"),
        *("step-000000010", "step-1234567890123456", "step-٠٠٠٠٠٠١٦"),
        *(
            "step-٠٠٠٠٠٠١٦.tmp-000000000001",
            "step-000000010.old-000000000001",
            "step-00000010.tmp-000000000001-٣",
        ),
    ]
    for name in names:
        (tmp_path / name).mkdir()
    assert steps(store) == [10]
    assert newest_good(store).step == 10
    remove_stale_staging(store.directory)
    store.prune(latest(1))
    store.discard_all()
    assert all((tmp_path / name).is_dir() for name in names)


def test_the_newest_is_loaded(tmp_path):
    newest = newest_good(filled(tmp_path, 10, 20))
    assert newest.step == 20
    assert holds(newest)


def test_a_step_is_found(tmp_path):
    assert holds(verified(filled(tmp_path, 10, 20), 10))


def test_a_missing_step_names_those_that_are_there(tmp_path):
    store = filled(tmp_path, 10, 20)
    with pytest.raises(CheckpointNotFoundError, match=r"step 15[^$]*10, 20"):
        verified(store, 15)
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint at all"):
        verified(Store(tmp_path / "empty"), 15)


def test_a_damaged_step_says_so_and_leaves_it(tmp_path):
    """Who asks for one step does not get another."""
    store = filled(tmp_path, 10, 20)
    (tmp_path / "step-00000020" / "run.json").write_bytes(b"")
    with pytest.raises(
        CorruptCheckpointError, match=r"step 20 is damaged[^$]*run\.json"
    ):
        verified(store, 20)
    assert steps(store) == [10, 20]


def test_a_step_that_is_saved_again_is_replaced(tmp_path):
    """The last epoch's checkpoint and the finished run's are of the same step."""
    store = filled(tmp_path, 10)
    save(store, 10, version=1, finished=True)
    (only,) = store.checkpoints()
    assert only.finished
    assert holds(only, version=1)
    assert os.listdir(tmp_path) == ["step-00000010"]


@pytest.mark.parametrize("look", [newest_good, lambda store: verified(store, 20)])
def test_a_replacement_that_was_interrupted_is_undone(tmp_path, look):
    """As a kill between its two renames leaves it, whoever asks for the checkpoint."""
    store = filled(tmp_path, 10, 20)
    (tmp_path / "step-00000020").rename(tmp_path / replaced_name(20))
    found = look(store)
    assert found.step == 20
    assert holds(found)
    assert sorted(os.listdir(tmp_path)) == ["step-00000010", "step-00000020"]


@pytest.mark.parametrize("look", [newest_good, lambda store: verified(store, 20)])
@pytest.mark.parametrize("damaged", ["run.json", "manifest.json"])
def test_a_replacement_that_is_damaged_is_undone(tmp_path, look, damaged, caplog):
    """The former checkpoint goes only where the new one is whole."""
    store = filled(tmp_path, 10, 20)
    (tmp_path / "step-00000020").rename(tmp_path / replaced_name(20))
    save(store, 20, version=1)
    (tmp_path / "step-00000020" / damaged).write_bytes(b"x")
    assert holds(look(store))
    assert steps(store) == [10, 20]
    assert leftovers(tmp_path) == []
    (moved,) = quarantined(tmp_path / "quarantine")
    assert moved.name == "step-00000020-1"
    assert (moved / damaged).read_bytes() == b"x"
    assert (
        "step-00000020 is damaged, so the checkpoint that it replaced is restored"
        in caplog.text
    )


def test_what_leads_out_of_the_directory_is_not_followed_by_a_deletion(tmp_path):
    """Of a link only the link is deleted, and what is no directory just as well."""
    store = filled(tmp_path / "runs", 10)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "precious").touch()
    (tmp_path / "runs" / "step-00000010.old-000000000001").symlink_to(theirs)
    (tmp_path / "runs" / "step-00000010.old-000000000002").mkdir()
    (tmp_path / "runs" / "step-00000010.old-000000000002" / "link").symlink_to(theirs)
    (tmp_path / "runs" / "step-00000010.tmp-000000000001").symlink_to(theirs)
    os.mkfifo(tmp_path / "runs" / "step-00000010.tmp-000000000002")
    os.mkfifo(tmp_path / "runs" / "step-00000010.old-000000000003")
    assert len(remove_stale_staging(store.directory)) == 2
    assert os.listdir(tmp_path / "runs") == ["step-00000010"]
    assert os.listdir(theirs) == ["precious"]
    assert holds(verified(store, 10))


@pytest.mark.parametrize("look", [newest_good, lambda store: verified(store, 20)])
def test_of_a_replacement_that_was_done_nothing_is_left(tmp_path, look):
    store = filled(tmp_path, 10, 20)
    (tmp_path / "step-00000020").rename(tmp_path / replaced_name(20))
    save(store, 20, version=1)
    assert holds(look(store), version=1)
    assert sorted(os.listdir(tmp_path)) == ["step-00000010", "step-00000020"]


def test_prune_keeps_what_the_policy_selects(tmp_path):
    store = Store(tmp_path)
    for step, loss in [(10, 0.5), (20, 0.1), (30, 0.4), (40, 0.3), (50, 0.6)]:
        save(store, step, metrics={"loss": loss})
    assert store.prune(latest(2) | best(1, "loss")) == [10, 30]
    assert steps(store) == [20, 40, 50]
    assert leftovers(tmp_path) == []


def test_prune_lets_be_what_cannot_be_read_here_and_now(tmp_path, monkeypatch):
    """A run that goes on does not end for a checkpoint that another user left."""
    cannot_be_read(monkeypatch, step=10)
    filled(tmp_path, 10, 20, 30)
    assert Store(tmp_path).prune(latest(1)) == [20]


def test_prune_reads_manifests_of_others_once_and_again_if_they_were_replaced(
    tmp_path, monkeypatch
):
    """A run that keeps thousands prunes after each save."""
    read, real = [], Checkpoint.read

    def spy(path):
        read.append(int(path.name[-2:]))
        return real(path)

    monkeypatch.setattr(prune.Checkpoint, "read", spy)
    filled(tmp_path, 10, 20)
    store = Store(tmp_path)
    for _ in range(2):
        store.prune(latest(9))
    save(store, 30, metrics={"loss": 0.2})
    store.prune(latest(9))
    assert read == [10, 20]
    save(Store(tmp_path), 10, metrics={"loss": 0.1})
    assert store.prune(best(1, "loss")) == [20]
    assert read == [10, 20, 10]
    save(store, 30, metrics={"loss": 0.01})
    assert store.prune(best(1, "loss")) == [10]
    assert read == [10, 20, 10]


def test_prune_keeps_the_newest_whatever_the_policy_says(tmp_path):
    class Nothing:
        def select(self, _checkpoints):
            return set()

    store = filled(tmp_path, 10, 20)
    assert store.prune(Nothing()) == [10]
    assert steps(store) == [20]


def test_prune_removes_the_link_to_a_checkpoint_that_was_moved_away(tmp_path):
    """A checkpoint may be moved to another disk and linked; the copy is not ours."""
    store = filled(tmp_path / "runs", 10, 20)
    (tmp_path / "runs" / "step-00000010").rename(tmp_path / "elsewhere")
    (tmp_path / "runs" / "step-00000010").symlink_to(tmp_path / "elsewhere")
    assert holds(verified(store, 10))
    assert store.prune(latest(1)) == [10]
    assert os.listdir(tmp_path / "runs") == ["step-00000020"]
    assert (tmp_path / "elsewhere" / "run.json").exists()


def test_discard_after_moves_the_newer_to_quarantine(tmp_path):
    store = filled(tmp_path, 10, 20, 30)
    assert store.discard_after(10) == [20, 30]
    assert steps(store) == [10]
    reason = json.loads(
        (tmp_path / "quarantine" / "step-00000030-1.reason.json").read_text()
    )
    assert reason["kind"] == "superseded"
    assert reason["text"] == "resumed from step 10 instead"
    assert newest_good(store).step == 10


def test_discard_all_starts_over_and_deletes_nothing(tmp_path):
    store = filled(tmp_path, 10, 20)
    assert store.discard_all() == [10, 20]
    assert newest_good(store) is None
    kept = tmp_path / "quarantine" / "step-00000020-1"
    reason = json.loads(kept.with_name("step-00000020-1.reason.json").read_text())
    assert reason["kind"] == "discarded"
    assert reason["text"] == "the run was started over"
    assert Manifest.from_bytes((kept / "manifest.json").read_bytes())
    assert (kept / "run.json").exists()


def test_quarantine_numbers_repeated_names(tmp_path):
    store = Store(tmp_path)
    for _ in range(3):
        save(store, 10)
        store.discard_all()
    assert [path.name for path in quarantined(tmp_path / "quarantine")] == [
        "step-00000010-1",
        "step-00000010-2",
        "step-00000010-3",
    ]


def test_what_is_nested_too_deep_to_be_deleted_is_an_error_of_the_disk(tmp_path):
    save(store := Store(tmp_path), 10)
    save(store, 20)
    for name in ("step-00000010", "step-00000030.tmp-0123456789ab"):
        (tmp_path / name).mkdir(exist_ok=True)
        at = os.open(tmp_path / name, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("a", dir_fd=at)
            inner = os.open("a", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = inner
        os.close(at)
    remove_stale_staging(store.directory)
    with pytest.raises(CheckpointWriteError, match="nested too deep"):
        store.prune(latest(1))
    assert steps(store) == [20]
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)  # pytest cannot


def test_stale_staging_is_removed_and_nothing_else(tmp_path):
    store = filled(tmp_path, 10)
    stale = tmp_path / "step-00000020.tmp-0123456789ab"
    (stale / "variables").mkdir(parents=True)
    (tmp_path / "notes.tmp-1").mkdir()
    assert remove_stale_staging(store.directory) == [stale]
    assert sorted(os.listdir(tmp_path)) == ["notes.tmp-1", "step-00000010"]


def test_an_error_of_the_writer_itself_is_passed_on_and_leaves_nothing(tmp_path):
    store = filled(tmp_path, 10)

    def write(staging):
        Path(staging, "half").write_bytes(b"x")
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        commit(store, Progress(20, 2, 0), write)
    assert os.listdir(tmp_path) == ["step-00000010"]


def test_an_interrupted_commit_leaves_nothing(tmp_path):
    store = filled(tmp_path, 10)

    def write(_staging):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        commit(store, Progress(20, 2, 0), write)
    assert os.listdir(tmp_path) == ["step-00000010"]


def test_links_in_staging_are_refused(tmp_path):
    """What they point to would be neither synced nor kept."""

    def write(staging):
        Path(staging, "weights").symlink_to("/dev/null")

    with pytest.raises(CheckpointWriteError, match="only regular files"):
        commit(Store(tmp_path), Progress(1, 0, 1), write)
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_of_a_later_schema_is_refused_and_left_alone(tmp_path):
    """It is not damaged: falling back behind it would lose work."""
    store = filled(tmp_path, 10, 20)
    change(tmp_path / "step-00000020", lambda said: said.update(schema=2))
    for act in (
        lambda: store.problems(20),
        lambda: newest_good(store),
        lambda: verified(store, 20),
    ):
        with pytest.raises(NotSupportedError, match="schema 2"):
            act()
    assert (tmp_path / "step-00000020").exists()
