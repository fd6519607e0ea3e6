"""Damage of every kind to every file is noticed, and never taken for a fresh start."""

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest
from support.checkpoint_samples import (
    FILES,
    filled,
    holds,
    newest_good,
    save,
    steps,
    verified,
)

from resilient.errors import CheckpointReadError, CorruptCheckpointError
from resilient.policies import latest
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.manifest import Manifest, ManifestError, record
from resilient.storage.store import Store

pytestmark = pytest.mark.once

EVERY_FILE = [*FILES, "manifest.json"]


def truncate(path):
    os.truncate(path, random.Random(str(path)).randrange(1, path.stat().st_size))


def empty(path):
    path.write_bytes(b"")


def flip_a_bit(path, offset=None):
    data = bytearray(path.read_bytes())
    generator = random.Random(str(path))
    place = generator.randrange(len(data)) if offset is None else offset
    data[place] ^= 1 << generator.randrange(8)
    path.write_bytes(data)


def append(path):
    path.write_bytes(path.read_bytes() + b"\0")


def replace_by_directory(path):
    path.unlink()
    path.mkdir()


def replace_by_link(path):
    """As copying without `-L` leaves it, or who wants a file elsewhere to be read."""
    other = path.parents[2] / "elsewhere"
    path.rename(other)
    path.symlink_to(other)


def replace_by_fifo(path):
    path.unlink()
    os.mkfifo(path)


def swap_for_the_one_before(path):
    """What a restored backup of single files would do."""
    shutil.copy(Path(str(path).replace("step-00000020", "step-00000010")), path)


DAMAGES = [
    truncate,
    empty,
    os.remove,
    flip_a_bit,
    append,
    replace_by_directory,
    replace_by_link,
    replace_by_fifo,
    swap_for_the_one_before,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", EVERY_FILE)
def test_damage_is_noticed_and_the_checkpoint_before_is_used(tmp_path, name, damage):
    """It goes to quarantine with its reason, and one line says so."""
    store = filled(tmp_path, 10, 20)
    damage(tmp_path / "step-00000020" / name)
    lines = []
    good = newest_good(store, lambda *line: lines.append(line))
    assert good.step == 10
    assert holds(good)
    ((checkpoint, reason),) = lines
    assert checkpoint == "step-00000020"
    assert reason.startswith(name)
    assert "\n" not in reason
    assert steps(store) == [10]
    written = json.loads(
        (tmp_path / "quarantine" / "step-00000020-1.reason.json").read_text()
    )
    assert (written["kind"], written["text"]) == ("damaged", reason)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_noticed_wherever_it_is(tmp_path, name):
    store = filled(tmp_path, 10)
    path = tmp_path / "step-00000010" / name
    intact = path.read_bytes()
    generator = random.Random(name)
    for offset in [0, len(intact) - 1, *generator.sample(range(len(intact)), 30)]:
        flip_a_bit(path, offset)
        assert store.problems(10) == [f"{name} does not match its checksum"]
        path.write_bytes(intact)
    assert store.problems(10) == []


def test_every_single_bit_of_the_manifest_counts(tmp_path):
    filled(tmp_path, 10)
    raw = (tmp_path / "step-00000010" / "manifest.json").read_bytes()
    assert Manifest.from_bytes(raw).to_bytes() == raw
    for offset in range(len(raw)):
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[offset] ^= 1 << bit
            with pytest.raises(ManifestError):
                Manifest.from_bytes(bytes(flipped))


def test_a_manifest_that_is_missing_is_named(tmp_path):
    filled(tmp_path, 10)
    (tmp_path / "step-00000010" / "manifest.json").unlink()
    with pytest.raises(ManifestError, match=r"^manifest\.json is missing$"):
        Checkpoint.read(tmp_path / "step-00000010")


def test_a_manifest_cut_off_anywhere_is_none(tmp_path):
    filled(tmp_path, 10)
    raw = (tmp_path / "step-00000010" / "manifest.json").read_bytes()
    assert Manifest.from_bytes(raw).to_bytes() == raw
    for length in range(len(raw)):
        with pytest.raises(ManifestError):
            Manifest.from_bytes(raw[:length])


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path):
    store = filled(tmp_path, 10)
    (tmp_path / "step-00000010").rename(tmp_path / "step-00000090")
    assert store.problems(90) == [
        "manifest.json belongs to step 10, not to step-00000090"
    ]
    assert steps(store) == []


def test_a_manifest_that_changes_after_it_was_read_is_noticed(tmp_path):
    store = filled(tmp_path, 10)
    (before,) = store.checkpoints()
    save(store, 10, version=1)
    assert before.verify() == ["manifest.json was replaced after it was read"]


def test_a_missing_directory_inside_is_noticed(tmp_path):
    store = filled(tmp_path, 10)
    shutil.rmtree(tmp_path / "step-00000010" / "variables")
    assert store.problems(10) == [
        "variables/index.json is missing",
        "variables/weights.bin is missing",
    ]


@pytest.mark.parametrize("name", EVERY_FILE)
def test_a_link_is_damage_that_says_how_to_copy(tmp_path, name):
    store = filled(tmp_path, 10)
    replace_by_link(tmp_path / "step-00000010" / name)
    assert store.problems(10) == [
        f"{name} is a symbolic link, which is not followed: copy with `cp -L`"
    ]


def test_a_directory_inside_that_is_a_link_is_damage(tmp_path):
    store = filled(tmp_path, 10)
    inner = tmp_path / "step-00000010" / "variables"
    inner.rename(tmp_path / "elsewhere")
    inner.symlink_to("../elsewhere")
    assert [line.partition(":")[0] for line in store.problems(10)] == [
        "variables/index.json is a symbolic link, which is not followed",
        "variables/weights.bin is a symbolic link, which is not followed",
    ]


def test_of_a_file_that_grows_no_more_is_read_than_the_manifest_lists(tmp_path):
    """One that was cut off and extended again takes no room, and could be endless."""
    store = filled(tmp_path, 10)
    path = tmp_path / "step-00000010" / "run.json"
    os.truncate(path, 1 << 40)
    assert store.problems(10)[0].startswith("run.json has 1,099,511,627,776 bytes")
    with open(path, "rb", buffering=0) as file:
        assert record(file, 5).size == 5
        assert file.tell() == 5


def test_a_file_in_place_of_a_checkpoint_is_moved_away(tmp_path):
    store = filled(tmp_path, 10)
    (tmp_path / "step-00000020").write_text("not a checkpoint")
    assert newest_good(store).step == 10
    assert (tmp_path / "quarantine" / "step-00000020-1").is_file()


def test_files_that_nobody_listed_are_no_damage(tmp_path):
    """File browsers and network file systems leave their own."""
    store = filled(tmp_path, 10)
    path = tmp_path / "step-00000010"
    assert verified(store, 10).unlisted() == []
    (path / ".DS_Store").write_bytes(b"x")
    (path / "variables" / ".nfs0001").write_bytes(b"x")
    os.mkfifo(path / "data" / "fifo")
    (path / "data" / "link").symlink_to("/etc")
    (path / "run").mkdir()
    for number in range(3):
        (path / "run" / f"process-{number}.json").write_bytes(b"x")
    assert store.problems(10) == []
    assert verified(store, 10).unlisted() == [
        ".DS_Store",
        "data/fifo",
        "data/link",
        "run",
        "variables/.nfs0001",
    ]
    assert len(verified(store, 10).unlisted(most=3)) == 3


def test_several_damaged_ones_are_all_passed_over(tmp_path):
    store = filled(tmp_path, 10, 20, 30, 40)
    empty(tmp_path / "step-00000040" / "run.json")
    os.remove(tmp_path / "step-00000030" / "manifest.json")
    names = []
    assert newest_good(store, lambda name, _: names.append(name)).step == 20
    assert names == ["step-00000040", "step-00000030"]


def test_all_damaged_is_an_error_that_names_each_and_its_reason(tmp_path):
    store = filled(tmp_path, 10, 20)
    empty(tmp_path / "step-00000010" / "run.json")
    os.remove(tmp_path / "step-00000020" / "manifest.json")
    with pytest.raises(CorruptCheckpointError) as caught:
        newest_good(store)
    message = str(caught.value)
    assert "quarantine/step-00000020-1: manifest.json is missing" in message
    assert "quarantine/step-00000010-1: run.json has 0 bytes instead of" in message
    assert 'resume="never"' in message


def test_all_damaged_is_an_error_on_the_next_attempt_again(tmp_path):
    """All are in quarantine by then, which must not look like an empty directory."""
    store = filled(tmp_path, 10)
    empty(tmp_path / "step-00000010" / "run.json")
    for _ in range(3):
        with pytest.raises(CorruptCheckpointError, match=r"step-00000010-1: run\.json"):
            newest_good(store)
        store = Store(tmp_path)


def test_starting_over_settles_what_is_damaged_in_quarantine(tmp_path):
    store = filled(tmp_path, 10)
    empty(tmp_path / "step-00000010" / "run.json")
    with pytest.raises(CorruptCheckpointError):
        newest_good(store)
    store.discard_all()
    assert newest_good(Store(tmp_path)) is None


def test_starting_over_settles_what_is_damaged_in_place(tmp_path):
    store = filled(tmp_path, 10)
    empty(tmp_path / "step-00000010" / "run.json")
    assert store.discard_all() == [10]
    assert newest_good(store) is None


def test_a_good_commit_settles_what_was_damaged(tmp_path):
    """Then it is the deletion of good checkpoints that leads to a fresh start."""
    store = filled(tmp_path, 10, 20)
    empty(tmp_path / "step-00000020" / "run.json")
    assert newest_good(store).step == 10
    save(store, 30)
    for step in (10, 30):
        shutil.rmtree(tmp_path / f"step-{step:08d}")
    assert newest_good(Store(tmp_path)) is None


def test_deleting_the_quarantine_settles_what_was_damaged(tmp_path):
    store = filled(tmp_path, 10)
    empty(tmp_path / "step-00000010" / "run.json")
    with pytest.raises(CorruptCheckpointError):
        newest_good(store)
    shutil.rmtree(tmp_path / "quarantine")
    assert newest_good(store) is None


def test_a_reason_that_cannot_be_read_counts_as_damage(tmp_path):
    store = filled(tmp_path, 10)
    store.discard_all()
    assert newest_good(store) is None
    empty(tmp_path / "quarantine" / "step-00000010-1.reason.json")
    with pytest.raises(CorruptCheckpointError, match=r"reason\.json is malformed"):
        newest_good(store)


def test_falling_back_works_where_nothing_may_be_moved(tmp_path, monkeypatch, caplog):
    """On a read-only file system the damaged one stays; the log says so."""
    store = filled(tmp_path, 10, 20)
    empty(tmp_path / "step-00000020" / "run.json")

    def refuse(*_arguments, **_keywords):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    assert newest_good(store).step == 10
    assert "step-00000020 stays where it is" in caplog.text
    empty(tmp_path / "step-00000010" / "run.json")
    with pytest.raises(CorruptCheckpointError, match=r"step-00000010: run\.json has 0"):
        newest_good(store)


@pytest.mark.parametrize("function", ["read_file", "open_file", "record"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_what_cannot_be_read_here_and_now_is_not_taken_for_damaged(
    tmp_path, monkeypatch, number, function
):
    """Another user's checkpoints are whole: moving them away would help nobody."""
    store = filled(tmp_path, 10)

    def refuse(*_arguments, **_keywords):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"resilient.storage.checkpoint.{function}", refuse)
    with pytest.raises(CheckpointReadError, match=os.strerror(number)) as raised:
        newest_good(store)
    assert raised.value.errno == number
    assert os.listdir(tmp_path) == ["step-00000010"]


@pytest.mark.parametrize(
    ("library_says", "advice"),
    [
        ("unable to mmap 240 bytes: Cannot allocate memory (12)", "Free some memory"),
        ("OOM when allocating tensor with shape[9,9]", "Free some memory"),
        ("Error opening local file: Too many open files", "Close files"),
    ],
)
def test_what_a_library_cannot_read_now_is_not_taken_for_damaged(
    tmp_path, library_says, advice
):
    """Each byte is right, and libraries say what the machine lacks in words only."""
    store = Store(tmp_path)
    for step in (10, 20):
        save(store, step)

    def read(checkpoint):
        raise CorruptCheckpointError("It cannot be decoded.", received=library_says)

    with pytest.raises(CheckpointReadError, match=advice):
        store.load_newest(read)
    assert store.steps() == [10, 20]
    assert newest_good(store).step == 20


def test_an_unreadable_sector_is_damage(tmp_path, monkeypatch):
    store = filled(tmp_path, 10)

    def fail(*_arguments, **_keywords):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("resilient.storage.checkpoint.record", fail)
    assert store.problems(10)[0].endswith("cannot be read (Input/output error)")


def test_pruning_neither_counts_nor_deletes_what_has_no_manifest(tmp_path):
    store = filled(tmp_path, 10, 20, 30)
    os.remove(tmp_path / "step-00000030" / "manifest.json")
    assert store.prune(latest(1)) == [10]
    assert (tmp_path / "step-00000030").is_dir()
    assert newest_good(store).step == 20
