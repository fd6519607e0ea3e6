"""The pictures of the README are there, and show the figures of the documentation."""

import re
import sys

import pytest
from support.snippets import ROOT

pytestmark = pytest.mark.once

PICTURES = ROOT / "docs" / "pictures"


@pytest.mark.parametrize("picture", ["stalls", "fits", "recovery"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_bar_chart_shows_what_the_tables_say(picture, scheme, monkeypatch):
    """If a table changed: `nox -s pictures`, or `python docs/pictures/bars.py`."""
    monkeypatch.syspath_prepend(str(PICTURES))
    import tables

    bars = {(row["way"], row["backend"]): row for row in getattr(tables, picture)()}
    if picture != "recovery":  # where another backend has other ways
        assert len(bars) == len(tables.WAYS) * len(tables.BACKENDS)
    path = PICTURES / f"{picture}-{scheme}.svg"
    assert path.exists() == bool(bars)
    drawn = path.read_text() if bars else ""
    labels = re.findall(r">([\d.]+ (?:ms|x|s))<", drawn)
    assert sorted(labels) == sorted(row["label"] for row in bars.values())
    sys.modules.pop("tables")


def test_the_pictures_of_the_readme_are_there():
    text = (ROOT / "README.md").read_text()
    shown = re.findall(r"/main/(docs/pictures/[\w-]+\.svg)\"", text)
    assert len(shown) == 6
    for path in shown:
        assert (ROOT / path).is_file(), path
