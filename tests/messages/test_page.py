"""The pages on troubleshooting list what the code says."""

import page
import pytest

pytestmark = pytest.mark.once


def test_every_message_is_listed_with_its_remedy():
    pages = page.pages()
    assert set(page.FOLDER.iterdir()) == set(pages)
    for path, text in pages.items():
        assert path.read_text() == text, "run python tests/messages/page.py"


def test_no_page_is_too_long_to_read():
    for path in page.FOLDER.iterdir():
        assert len(path.read_text().split()) <= 1200, path
