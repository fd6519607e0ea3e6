"""The pictures of the README are there, and show the figures of the documentation."""

import re
import sys

import pytest
from support.snippets import ROOT

pytestmark = pytest.mark.once

PICTURES = ROOT / "docs" / "pictures"


@pytest.mark.parametrize("picture", ["stalls", "fits"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_bar_chart_shows_what_the_tables_say(picture, scheme, monkeypatch):
    """If a table changed: `nox -s pictures`."""
    monkeypatch.syspath_prepend(str(PICTURES))
    import tables

    rows = getattr(tables, picture)()
    assert len(rows) == len(tables.WAYS) * len(tables.BACKENDS)
    drawn = PICTURES.joinpath(f"{picture}-{scheme}.svg").read_text()
    labels = re.findall(r">([\d.]+ (?:ms|x))<", drawn)
    assert sorted(labels) == sorted(row["label"] for row in rows)
    sys.modules.pop("tables")


def test_the_pictures_of_the_readme_are_there():
    text = (ROOT / "README.md").read_text()
    shown = re.findall(r"/main/(docs/pictures/[\w-]+\.svg)\"", text)
    assert len(shown) == 6
    for path in shown:
        assert (ROOT / path).is_file(), path
