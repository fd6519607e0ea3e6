"""What objects show of themselves in a prompt and in a notebook."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.checkpoint_samples import commit, writer

from resilient.progress import Progress
from resilient.saving.directory import OnDirectory
from resilient.storage.store import Store
from resilient.telemetry.goodput import goodput

pytestmark = pytest.mark.once

HOSTILE = "<script>alert('x')</script>\x1b[2J\u202e"


class Tags(HTMLParser):
    """The tags of a document, and its text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


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
    assert repr(run.goodput) == (
        "<Goodput 0.0% of 0.0 s: 0 steps, plus 0 lost, 0 attempts>"
    )


def test_a_table_says_the_same(tmp_path):
    run = saved(tmp_path, {"loss": 0.25})
    for thing in (run, run.latest):
        shown = Tags(thing._repr_html_())
        assert "step 20 (epoch 3, batch 2), finished" in shown.text
        assert "loss 0.25" in shown.text
    events = ({"time": 1, "event": "started"}, {"time": 3, "event": "training"})
    who = {"attempt": "a", "host": "h", "pid": 7, "step": 1}
    lines = "".join(json.dumps({**event, **who}) + "\n" for event in events)
    (tmp_path / "events.jsonl").write_text(lines)
    shown = Tags(goodput(tmp_path)._repr_html_())
    assert "starting2.0 s (100.0%)" in shown.text


def test_what_files_say_is_escaped(tmp_path):
    """No tag but those of the table, and nothing that a terminal would obey."""
    run = saved(tmp_path / HOSTILE.replace("/", "_"), {HOSTILE: 1.0})
    for thing in (run, run.latest):
        shown = Tags(thing._repr_html_())
        assert shown.tags == {"table", "caption", "tr", "th", "td"}
        assert "<script>" in shown.text
        for text in (repr(thing), thing._repr_html_()):
            assert "\x1b" not in text
            assert "\u202e" not in text


def test_without_a_checkpoint_it_says_so(tmp_path):
    run = OnDirectory(Store(tmp_path / "none"))
    assert "checkpoints: none yet" in repr(run)
    assert "none yet" in run._repr_html_()


def test_what_cannot_be_read_is_shown_all_the_same(tmp_path, monkeypatch):
    run = OnDirectory(Store(tmp_path))

    def denied(*, only_readable: bool) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run._store, "checkpoints", denied)
    assert "cannot be read (Permission denied)" in repr(run)
