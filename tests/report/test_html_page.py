"""The page as text; a browser opens it in ``tests/pages``."""

import re
from html.parser import HTMLParser

import pytest
from support.reported import killed_and_resumed, write_events

from resilient.cli.main import main

pytestmark = pytest.mark.once

START = 1_700_000_000
HOSTILE = (
    "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u202e{{7*7}}"
)


class Tags(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = set(), ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.add(tag)

    def handle_data(self, data):
        self.text += data


def test_the_page_has_the_numbers_and_asks_the_network_for_nothing(tmp_path):
    killed_and_resumed(tmp_path / "run", START)
    page = tmp_path / "run.html"
    assert main(["report", str(tmp_path / "run"), "--html", str(page)]) == 0
    text = page.read_text("utf-8")
    for number in ("98.2%", "1:05:28", "6,000", "it was killed by SIGKILL", "node-8"):
        assert number in text
    assert "default-src 'none'" in text
    assert not re.search(r"<(script|link|img)|(src|href)=|url\(", text)


def test_what_a_file_says_is_text_on_the_page(tmp_path):
    fields = {"host": HOSTILE}
    lines = [
        ("a", 0, "started", fields),
        ("a", 1, "metrics", {"step": 1, "logs": {HOSTILE: 1.0, "loss": "nan"}}),
        ("a", 2, "failed", {"step": 2**53, "error": HOSTILE, "message": HOSTILE}),
        ("a", 3, "saved", {"step": 2**53, "nbytes": 2**53, "seconds": 1e11}),
    ]
    write_events(tmp_path / "runs" / "a<b>&", START, lines)
    page = tmp_path / "page.html"
    run = tmp_path / "runs" / "a<b>&"
    assert main(["report", str(run), "--html", str(page)]) == 0
    text = page.read_text("utf-8")
    tags = Tags(text)
    assert not tags.found & {"script", "img", "link", "a"}
    assert tags.text.count("<script>alert(1)") >= 7  # each is there, as text
    assert "\u202e" not in text
    assert "a<b>" not in text


def test_a_page_is_of_one_run(tmp_path, capsys):
    killed_and_resumed(tmp_path / "runs" / "a", START)
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "runs"), "--html", str(page)]) == 5
    assert "Name one of the runs in it" in capsys.readouterr().err
    assert not page.exists()


def test_a_file_that_cannot_be_written_is_said(tmp_path, capsys):
    killed_and_resumed(tmp_path / "run", START)
    missing = tmp_path / "missing" / "page.html"
    assert main(["report", str(tmp_path / "run"), "--html", str(missing)]) == 5
    assert "missing" in capsys.readouterr().err
