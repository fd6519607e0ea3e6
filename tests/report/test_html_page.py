"""The page as text; a browser opens it in ``tests/pages``."""

import json
import re

import pytest
from support.reported import killed_and_resumed, write_events

from resilient.cli.main import main

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

pytestmark = pytest.mark.once

START = 1_700_000_000
HOSTILE = (
    "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u202e{{7*7}}"
)


def without_vega(text):
    """The page but for the library in it, which has HTML of its own."""
    scripts = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    library = max(scripts, key=len)
    assert "vegaEmbed" in library
    return text.replace(library, "")


def test_the_page_has_the_numbers_and_asks_the_network_for_nothing(tmp_path):
    killed_and_resumed(tmp_path / "run", START)
    page = tmp_path / "run.html"
    assert main(["report", str(tmp_path / "run"), "--html", str(page)]) == 0
    text = without_vega(page.read_text("utf-8"))
    for number in ("98.2%", "1:05:28", "6,000", "it was killed by SIGKILL", "2.13.0"):
        assert number in text
    assert "default-src 'none'" in text
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)


def test_what_a_file_says_is_text_on_the_page(tmp_path):
    fields = {"environment": {HOSTILE: HOSTILE}, "host": HOSTILE}
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
    text = without_vega(page.read_text("utf-8"))
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    assert "a<b>" not in text
    for spec in re.findall(r'<script type="application/json"[^>]*>(.*?)</', text):
        json.loads(spec, parse_constant=pytest.fail)


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
