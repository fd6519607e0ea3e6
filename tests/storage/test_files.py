"""Only regular files inside a directory are opened, whatever else is put there."""

import os
import socket
from pathlib import Path

import pytest

from resilient.storage.files import is_inside, open_file, read_file, replace_file

pytestmark = pytest.mark.once


def test_a_file_is_read(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(b"x" * 3_000_000)
    assert read_file(tmp_path, "inner/file", 3_000_000) == b"x" * 3_000_000
    with pytest.raises(OSError, match="larger than the 2,999,999 bytes"):
        read_file(tmp_path, "inner/file", 2_999_999)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path, "inner/none", 10)


def test_the_directory_may_be_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("there")
    assert read_file(tmp_path / "link", "file", 10) == b"x"


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "socket", "directory"])
def test_anything_else_is_refused_at_once(tmp_path, kind):
    (tmp_path / "target").write_bytes(b"secret")
    place = tmp_path / "file"
    if kind == "link":
        place.symlink_to("target")
    elif kind == "dangling":
        place.symlink_to("nowhere")
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(place))
    else:
        place.mkdir()
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT):
        with pytest.raises(
            OSError, match=r"symbolic link|not a regular file|directory"
        ):
            open_file(tmp_path, "file", flags)
    assert not (tmp_path / "nowhere").exists()


def test_a_device_is_refused():
    with pytest.raises(OSError, match="not a regular file"):
        open_file(Path("/dev"), "zero")


def test_no_link_on_the_way_is_followed(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"x")
    (tmp_path / "inner").symlink_to("other")
    with pytest.raises(OSError, match="symbolic link"):
        read_file(tmp_path, "inner/file", 10)


def test_an_error_names_the_whole_path(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "b")

    at = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: refuse() if k else at(*a))
    with pytest.raises(PermissionError) as raised:
        read_file(tmp_path, "a/b", 9)
    assert raised.value.filename == str(tmp_path / "a/b")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/x", "a/../../x", "a//b", "a/", "./a", "a\0b"]
)
def test_no_path_leaves_the_directory(tmp_path, name):
    assert not is_inside(name)
    with pytest.raises(OSError, match="leaves the directory"):
        open_file(tmp_path, name)


def test_a_planted_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "target").write_text("precious")
    (tmp_path / "file").symlink_to("target")
    (tmp_path / "file.tmp").symlink_to("target")  # as it was once named
    replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_text() == "new"
    assert (tmp_path / "target").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["file", "file.tmp", "target"]


def test_what_is_made_has_the_mode_that_the_umask_leaves(tmp_path):
    before = os.umask(0o077)
    try:
        replace_file(tmp_path / "file", b"new")
        os.close(open_file(tmp_path, "other", os.O_WRONLY | os.O_CREAT))
    finally:
        os.umask(before)
    modes = {
        name: (tmp_path / name).stat().st_mode & 0o777 for name in ("file", "other")
    }
    assert modes == {"file": 0o600, "other": 0o600}
