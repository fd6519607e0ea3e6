"""The page of the documentation lists what the code says."""

import page
import pytest

pytestmark = pytest.mark.once


def test_every_message_is_listed_with_its_remedy():
    assert page.PAGE.read_text() == page.written(), "run python tests/messages/page.py"
