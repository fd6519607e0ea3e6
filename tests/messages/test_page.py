"""The pages on troubleshooting list what the code says."""

import page
import pytest

from resilient.supervise.failures import Evidence, classify

pytestmark = pytest.mark.once


def test_every_message_is_listed_with_its_remedy():
    pages = page.pages()
    assert set(page.FOLDER.iterdir()) == set(pages)
    for path, text in pages.items():
        assert path.read_text() == text, "run python tests/messages/page.py"


def test_no_page_is_too_long_to_read():
    for path in page.FOLDER.iterdir():
        assert len(path.read_text().split()) <= 1200, path


def test_no_message_reads_like_a_lack_of_memory():
    """The supervisor looks for such words in errors."""
    for path in sorted((page.ROOT / "resilient").rglob("*.py")):
        if path.parent.name != "supervise":
            failed = {"event": "failed", "error": "E", "message": path.read_text()}
            assert classify(Evidence(1, [failed])).kind != "out of memory", path
