"""Uploads that take longer than what happens meanwhile: saves, and the end of a run."""

import threading

import pytest
from support.checkpoint_samples import holds, newest_good, save

from resilient.policies import latest
from resilient.storage.remote.objects import Objects, StoreError
from resilient.storage.remote.options import Upload
from resilient.storage.stores import store_of

pytestmark = pytest.mark.once


class Hang:
    """Lets requests of a kind hang, of which the first one was made."""

    def __init__(self, monkeypatch, what):
        self.begun, self.over, self.committed = (threading.Event() for _ in range(3))
        self.error = None
        self.made, self._threads, self._what = [], [], what
        put, send = Objects.put, Objects.send

        def hanging_put(objects, name, content):
            self._around(name, lambda: put(objects, name, content))

        def hanging_send(objects, path, name):
            self._around(name, lambda: send(objects, path, name))

        monkeypatch.setattr(Objects, "put", hanging_put)
        monkeypatch.setattr(Objects, "send", hanging_send)

    def _around(self, name, request):
        if not self.over.is_set() and name.endswith(self._what):
            self.begun.set()
            assert self.over.wait(60)
            if self.error is not None:
                raise self.error
        request()
        self.made.append(name)
        if name.endswith("manifest.json"):
            self.committed.set()

    def wait(self):
        assert self.begun.wait(60)
        self._threads = threading.enumerate()

    def end(self):
        """Let them go on; return when nothing is under way any more."""
        self.made.clear()
        self.over.set()
        for thread in self._threads:
            if thread.name.startswith("resilient-"):
                thread.join(60)


def at(folder, name="near", **limits):
    upload = Upload(patience=0.2, **limits)
    return store_of(f"file://{folder}/far", folder / name, upload)


def uploaded(store):
    while not store.uploaded(0.05):
        pass
    return not store.not_uploaded()


@pytest.mark.parametrize("error", [None, StoreError("SlowDown", transient=True)])
@pytest.mark.parametrize("what", ["run.json", "manifest.json", "newest"])
def test_nothing_follows_a_request_that_outlasts_the_run(
    tmp_path, monkeypatch, caplog, what, error
):
    store, events = at(tmp_path), []
    store.report = lambda event, **_: events.append(event)
    with store.opened():
        save(store, 1)
        assert uploaded(store)
        hang = Hang(monkeypatch, what)
        hang.error = error
        save(store, 2)
        hang.wait()
    told = [*events]
    hang.end()
    assert commits(hang) == []
    assert "newest" not in hang.made
    assert (events, caplog.text) == (told, "")


def saved_during_an_upload(store, monkeypatch):
    """The names of the commits, once many saves came while one was uploaded."""
    hang = Hang(monkeypatch, "run.json")
    save(store, 1)
    hang.wait()
    for step in range(2, 9):
        save(store, step)
        store.prune(latest(1))
    return hang


def commits(hang):
    return [int(n.split("-")[1]) for n in hang.made if n.endswith("manifest.json")]


def test_an_upload_is_finished_even_if_saves_come_faster(tmp_path, monkeypatch):
    """Or the store would get none of them, for as long as they do."""
    store = at(tmp_path)
    with store.opened():
        hang = saved_during_an_upload(store, monkeypatch)
        hang.over.set()
        assert hang.committed.wait(60)
        assert uploaded(store)
    assert commits(hang) == [1, 8]


def test_the_last_checkpoint_does_not_wait_for_one_before_it(tmp_path, monkeypatch):
    store = at(tmp_path, connections=1)
    with store.opened():
        hang = saved_during_an_upload(store, monkeypatch)
        assert not store.uploaded(0.01)  # from now on somebody waits
        hang.over.set()
        assert uploaded(store)
    assert commits(hang) == [8]


def test_a_request_of_a_run_that_has_ended_is_not_taken_for_the_next_one(
    tmp_path, monkeypatch
):
    """The next one is of the same object, as two fits of one ResilientFit are."""
    store = at(tmp_path)
    with store.opened():
        save(store, 1)
        hang = Hang(monkeypatch, "run.json")
        save(store, 2)
        hang.wait()
    with store.opened():
        hang.end()
        assert uploaded(store)
        save(store, 3)
        store.prune(latest(2))
        assert uploaded(store)
    new = at(tmp_path, "new")
    with new.opened():
        found = newest_good(new)
        assert (found.step, holds(found), new.steps()) == (3, True, [2, 3])


def test_a_retry_sends_only_files_that_are_not_there(tmp_path, monkeypatch):
    store, failed, sent = at(tmp_path), threading.Event(), []
    put, send = Objects.put, Objects.send

    def refuse_manifest(objects, name, content):
        if name.endswith("manifest.json"):
            raise StoreError("SlowDown", transient=True)
        put(objects, name, content)

    def record(objects, path, name):
        sent.append(name)
        send(objects, path, name)

    store.report = lambda event, **_: failed.set()
    monkeypatch.setattr(Objects, "send", record)
    with store.opened():
        monkeypatch.setattr(Objects, "put", refuse_manifest)
        save(store, 1)
        assert failed.wait(60)
        (there,) = (tmp_path / "far").glob("step-00000001-*")
        (there / "run.json").write_bytes(b"")  # cut
        monkeypatch.setattr(Objects, "put", put)
        assert uploaded(store)
    names = [name for name in sent if "/" in name]
    (twice,) = {name for name in names if names.count(name) == 2}
    assert twice.endswith("/run.json")
    assert len(names) == len({*names}) + 1
    new = at(tmp_path, "new")
    with new.opened():
        found = newest_good(new)
        assert (found.step, holds(found)) == (1, True)
