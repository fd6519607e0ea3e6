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


def test_every_page_shows_what_was_recorded_and_only_that():
    """The list of pages names them all."""
    pages = {page.stem: page.read_text() for page in GALLERY.glob("*.md")}
    listed = pages.pop("index").splitlines()
    assert pages.keys() == {path.stem for path in (GALLERY / "output").iterdir()}
    for name, text in pages.items():
        assert f"```{{literalinclude}} output/{name}.txt\n" in text, name
        assert name in listed, name


def test_nothing_recorded_depends_on_the_machine():
    """Neither its folders nor how fast it was."""
    machine = re.compile(r"/(root|home|tmp|work)/|\d[mu]?s/step|\d s ago|stored in \d")
    for path in (GALLERY / "output").iterdir():
        assert machine.findall(path.read_text()) == [], path.name
