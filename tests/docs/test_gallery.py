"""Every example is in the gallery, and so is everything recorded of one."""

import re

import pytest
from support import EXAMPLES
from support.snippets import ROOT

pytestmark = pytest.mark.once

GALLERY = ROOT / "docs" / "gallery"


def included() -> set[str]:
    """The files that pages of the gallery show."""
    pages = [page.read_text() for page in GALLERY.glob("*.md")]
    return set(
        re.findall(r"^```\{literalinclude\} (.+)$", "\n".join(pages), re.MULTILINE)
    )


def test_every_example_has_a_page():
    examples = [path for path in EXAMPLES.iterdir() if path.is_file()]
    assert examples
    for path in examples:
        assert f"../../examples/{path.name}" in included(), path.name


def test_everything_recorded_is_shown():
    """By the page of its example, which the list of pages names."""
    listed = (GALLERY / "index.md").read_text().splitlines()
    recorded = list((GALLERY / "output").iterdir())
    assert recorded
    for path in recorded:
        assert f"output/{path.name}" in included(), path.name
        assert path.stem in listed, path.name
