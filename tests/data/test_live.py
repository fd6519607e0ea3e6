"""An iterator that is drawn from keeps what was not trained yet."""

import threading
from types import SimpleNamespace

import pytest

from resilient.data.tracked import LiveIterator


@pytest.mark.once
def test_what_another_backend_drew_ahead_is_kept_where_none_is_drawn_ahead():
    settings = SimpleNamespace(ahead=False, overwritten=False)
    live = LiveIterator(iter([7, 8]), threading.RLock(), settings, 6, [4, 5, 6])
    assert live.since(3) == [4, 5, 6]
    assert next(live) == 4
    assert live.since(4) == [5, 6]
    assert [next(live) for _ in range(3)] == [5, 6, 7]
    assert live.since(7) == []
    assert live.recent[-1] == 7
