"""Links, files and FIFOs where checkpoints and the quarantine are expected."""

import json
import os
import shutil

import pytest
from support.checkpoint_samples import filled, holds, newest_good, save, steps

from resilient.errors import (
    CheckpointNotFoundError,
    CheckpointWriteError,
    CorruptCheckpointError,
)
from resilient.storage import quarantine
from resilient.storage.layout import quarantined
from resilient.storage.store import Store

pytestmark = pytest.mark.once

NAME = "step-00000020"


def file(path):
    path.write_text("not a checkpoint")


def link_to_a_file(path):
    path.with_name("elsewhere").write_text("precious")
    path.symlink_to("elsewhere")


def link_to_a_directory(path):
    path.with_name("elsewhere").mkdir()
    path.symlink_to("elsewhere")


def link_to_nothing(path):
    path.symlink_to("not-mounted")


PLANTED = [file, os.mkfifo, os.mkdir, link_to_a_file, link_to_a_directory]


def name_of(plant):
    return plant.__name__


@pytest.mark.parametrize("plant", PLANTED, ids=name_of)
def test_no_start_is_silent_where_something_has_the_name_of_a_checkpoint(
    tmp_path, plant
):
    """However often it is tried; not before the user says to start over."""
    plant(tmp_path / NAME)
    for _ in range(3):
        with pytest.raises(CorruptCheckpointError, match=f"quarantine/{NAME}-1: "):
            newest_good(Store(tmp_path))
    Store(tmp_path).discard_all()
    assert newest_good(Store(tmp_path)) is None


@pytest.mark.parametrize("plant", PLANTED, ids=name_of)
def test_a_good_commit_settles_whatever_it_was(tmp_path, plant):
    store = filled(tmp_path, 10)
    plant(tmp_path / NAME)
    assert newest_good(store).step == 10
    save(store, 30)
    shutil.rmtree(tmp_path / "step-00000010")
    shutil.rmtree(tmp_path / "step-00000030")
    assert newest_good(Store(tmp_path)) is None


def test_a_link_that_leads_nowhere_stays_until_its_disk_is_mounted(tmp_path):
    """Nothing is damaged: the checkpoint before is not used in its place."""
    directory = tmp_path / "runs"
    store = filled(directory, 10, 20)
    (directory / NAME).rename(tmp_path / "moved")
    (directory / NAME).symlink_to(tmp_path / "disk" / NAME)
    looks = (newest_good, lambda store: store.read(20))
    for look in (*looks, *looks):
        with pytest.raises(CheckpointNotFoundError, match=r"-> .*disk[^$]*Mount"):
            look(store)
    assert store.problems(20) == ["it is a link whose target is missing"]
    assert not (directory / "quarantine").exists()
    (tmp_path / "disk").mkdir()
    (tmp_path / "moved").rename(tmp_path / "disk" / NAME)
    assert holds(newest_good(store))
    assert steps(store) == [10, 20]


def test_nothing_is_written_into_what_a_link_leads_to(tmp_path):
    store = filled(tmp_path / "runs", 10)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / "runs" / NAME).symlink_to(theirs)
    assert newest_good(store).step == 10
    quarantine.settle(store.directory)
    (tmp_path / "runs" / NAME).symlink_to(theirs)
    store.discard_all()
    assert os.listdir(theirs) == []
    moved = quarantined(tmp_path / "runs" / "quarantine")
    assert [path.readlink() for path in moved[1:]] == [theirs, theirs]


@pytest.mark.parametrize("plant", [file, link_to_a_directory, link_to_nothing])
def test_a_quarantine_that_is_none_is_said_and_not_used(tmp_path, plant, caplog):
    store = filled(tmp_path, 10, 20)
    plant(tmp_path / "quarantine")
    (tmp_path / NAME / "run.json").unlink()
    assert newest_good(store).step == 10
    assert f"{NAME} stays where it is" in caplog.text
    for change in (store.discard_all, lambda: store.discard_after(10)):
        with pytest.raises(CheckpointWriteError, match=r"to quarantine: [^$]*remove"):
            change()
    if (tmp_path / "elsewhere").exists():
        assert os.listdir(tmp_path / "elsewhere") == []
    for step in ("10", "20"):
        shutil.rmtree(tmp_path / f"step-000000{step}")
    with pytest.raises(CorruptCheckpointError, match=r"  quarantine: "):
        newest_good(store)


def reason(**changes):
    """One that says that the entry is settled, but for these changes."""
    settled = {"kind": "damaged", "text": "x", "time": "", "open": False}
    return json.dumps(settled | changes).encode()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(b"[1]", id="a list"),
        pytest.param(b"[" * 100_000, id="nested"),
        pytest.param(reason(kind="harmless"), id="another kind"),
        pytest.param(reason(text=3), id="a number"),
        pytest.param(reason(open="no"), id="no truth value"),
        pytest.param(reason(text="x" * (2 << 20)), id="huge"),
        os.mkfifo,
        os.mkdir,
        pytest.param(lambda path: path.symlink_to("mine.json"), id="a link"),
    ],
)
def test_a_reason_that_is_none_counts_as_damage(tmp_path, content):
    """Whatever it is: never another exception, and never a start from scratch."""
    store = filled(tmp_path, 10)
    store.discard_all()
    path = tmp_path / "quarantine" / "step-00000010-1.reason.json"
    path.with_name("mine.json").write_bytes(reason())
    path.unlink()
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=r"10-1\.reason\.json"):
        newest_good(store)


def test_a_message_has_nothing_that_a_terminal_obeys(tmp_path):
    (tmp_path / "quarantine").mkdir()
    entry = tmp_path / "quarantine" / "step-00000010-1"
    entry.touch()
    text = "\x1b[2J\u202e" + "x" * 9999
    path = entry.with_name("step-00000010-1.reason.json")
    path.write_bytes(reason(open=True, text=text))
    with pytest.raises(CorruptCheckpointError) as caught:
        newest_good(Store(tmp_path))
    assert r"\u001b[2J\u202e" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 5000


def test_a_full_quarantine_costs_few_looks_and_a_short_message(tmp_path, monkeypatch):
    (tmp_path / "quarantine").mkdir()
    for number in range(1, 1001):
        (tmp_path / "quarantine" / f"step-00000010-{number}").touch()
    asked, lexists = [], os.path.lexists
    monkeypatch.setattr(
        os.path, "lexists", lambda path: asked.append(path) or lexists(path)
    )
    (tmp_path / "step-00000010").mkdir()
    with pytest.raises(CorruptCheckpointError) as caught:
        newest_good(Store(tmp_path))
    assert (tmp_path / "quarantine" / "step-00000010-1001").is_dir()
    assert len(asked) < 50
    assert "and 981 more" in str(caught.value)
