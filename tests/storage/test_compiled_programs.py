"""Programs that a backend compiled are used only where this user wrote them."""

import logging
import os
import shutil
from pathlib import Path

import pytest

from resilient.storage.compiled import CompiledPrograms

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(os.name == "nt", reason="nothing is kept on Windows"),
]


def kept(run):
    """What a start may load, as the backend would read it."""
    with CompiledPrograms(run).opened() as path:
        if path is None:
            return None
        names = sorted({*os.listdir(path)} - {"sealed.json"})
        return {name: Path(path, name).read_text() for name in names}


@pytest.fixture
def run(tmp_path):
    """A run that has kept two programs, and a third that was never sealed."""
    run = tmp_path / "run"
    run.mkdir()
    programs = CompiledPrograms(run)
    with programs.opened() as path:
        for name in ("a", "b"):
            (run / "compiled" / name).write_text(f"program {name}")
        assert os.path.samefile(path, run / "compiled")
        programs.seal()
        (run / "compiled" / "c").write_text("half a prog")
    return run


def test_the_next_start_has_what_was_sealed(run):
    """Also the one after it, and what was added meanwhile."""
    assert kept(run) == {"a": "program a", "b": "program b"}
    programs = CompiledPrograms(run)
    with programs.opened():
        (run / "compiled" / "d").write_text("program d")
        programs.seal()
    assert kept(run) == {"a": "program a", "b": "program b", "d": "program d"}


def test_a_new_run_has_none(tmp_path):
    """Only this user has a directory for them."""
    assert kept(tmp_path) == {}
    assert os.stat(tmp_path / "compiled").st_mode & 0o777 == 0o700


def change(path):
    before = os.stat(path)
    path.write_text("PROGRAM a")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def link(path):
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def replace(path):
    shutil.copy2(path, path.with_name("new"))
    path.with_name("new").replace(path)


@pytest.mark.parametrize(
    "damage",
    [change, link, replace, lambda path: os.truncate(path, 3), os.unlink],
    ids=["changed", "linked", "replaced", "cut", "deleted"],
)
def test_other_files_are_deleted(run, damage):
    """One that is not the file that was written, bytes or not."""
    damage(run / "compiled" / "a")
    assert kept(run) == {"b": "program b"}


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "\x00"])
def test_with_a_damaged_seal_nothing_is_used(run, text):
    (run / "compiled" / "sealed.json").write_text(text)
    assert kept(run) == {}


def test_files_of_somebody_else_stay(run, caplog):
    """The directory has no seal, so it is not ours."""
    (run / "compiled" / "sealed.json").unlink()
    with caplog.at_level(logging.WARNING):
        assert kept(run) is None
    assert "it has files of somebody else" in caplog.text
    assert sorted(os.listdir(run / "compiled")) == ["a", "b", "c"]


@pytest.mark.parametrize("copy", [shutil.copytree, shutil.move])
def test_a_copy_of_a_run_has_none(run, tmp_path, copy):
    """Somebody may have put programs into it. A run that was moved is the same."""
    copy(run, tmp_path / "other")
    expected = {} if copy is shutil.copytree else {"a": "program a", "b": "program b"}
    assert kept(tmp_path / "other") == expected


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_where_others_may_write(run, mode, caplog):
    """Nothing is used, and a line says why."""
    (run / "compiled").chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert kept(run) is None
    assert "others may write to it" in caplog.text


@pytest.mark.parametrize("other", ["file", "link"])
def test_where_something_else_has_the_name(tmp_path, other):
    """It is left alone."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    if other == "file":
        (tmp_path / "compiled").touch()
    else:
        (tmp_path / "compiled").symlink_to("elsewhere")
    assert kept(tmp_path) is None
    assert os.path.lexists(tmp_path / "compiled")


def test_a_swapped_directory_is_not_read(run, tmp_path):
    """What was opened stays what is read, whatever takes its name."""
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("this system has no /proc")
    with CompiledPrograms(run).opened() as path:
        (run / "compiled").rename(tmp_path / "away")
        (run / "compiled").mkdir()
        (run / "compiled" / "a").write_text("hostile")
        assert Path(path, "a").read_text() == "program a"


def test_with_a_key_nothing_is_kept(run, monkeypatch):
    """Whoever signs checkpoints trusts the key alone."""
    monkeypatch.setenv("RESILIENT_KEY", "k" * 32)
    assert kept(run) is None
