"""What objects show of themselves in a prompt."""

import re
from pathlib import Path

import pytest
from support.checkpoint_samples import commit, writer

from resilient.progress import Progress
from resilient.saving.directory import OnDirectory
from resilient.storage.store import Store

pytestmark = pytest.mark.once

HOSTILE = "<script>alert('x')</script>\x1b[2J\u202e"


def saved(directory: Path, metrics: dict[str, float]) -> OnDirectory:
    directory.mkdir(exist_ok=True)
    store = Store(directory)
    for step in (10, 20):
        at = Progress(step, 2, step // 10)
        more = {"finished": step == 20, "environment": {}}
        commit(store, at, writer(step), metrics=metrics, **more)
    return OnDirectory(store)


def test_a_line_says_what_a_person_wants_to_know(tmp_path):
    run = saved(tmp_path, {"loss": 0.25})
    newest = r"step 20 \(epoch 3, batch 2\), finished"
    assert re.search(rf"^<OnDirectory .*checkpoints: 2, .*{newest}", repr(run))
    assert re.search(rf"^<Checkpoint {newest}, .* loss 0.25", repr(run.latest))
    assert repr(run.goodput) == "<Goodput 0.0% of 0.0 s: 0 steps, plus 0 lost>"


def test_what_files_say_is_escaped(tmp_path):
    """Nothing that a terminal would obey."""
    run = saved(tmp_path / HOSTILE.replace("/", "_"), {HOSTILE: 1.0})
    for thing in (run, run.latest):
        assert "<script>" in repr(thing)
        assert "\x1b" not in repr(thing)
        assert "\u202e" not in repr(thing)


def test_without_a_checkpoint_it_says_so(tmp_path):
    run = OnDirectory(Store(tmp_path / "none"))
    assert "checkpoints: none yet" in repr(run)


def test_what_cannot_be_read_is_shown_all_the_same(tmp_path, monkeypatch):
    run = OnDirectory(Store(tmp_path))

    def denied(*, only_readable: bool) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run._store, "checkpoints", denied)
    assert "cannot be read (Permission denied)" in repr(run)
