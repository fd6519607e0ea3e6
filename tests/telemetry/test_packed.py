"""Records that are held as bytes, and read like a list."""

import math

import pytest

from resilient.telemetry.accounting import Span
from resilient.telemetry.packed import Packed


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2500])
def test_it_is_read_like_a_list(count: int) -> None:
    records = [Span(i, "saving", float(i), i + 0.1) for i in range(count)]
    packed = Packed(Span)
    for number, record in enumerate(records):
        packed.append(record)
        if number % 700 == 3:
            packed.pack()
    assert len(packed) == count
    assert list(packed) == records
    assert list(reversed(packed)) == records[::-1]
    assert packed[-500:] == records[-500:]
    assert packed[1:3] == records[1:3]
    for at in (0, 1, 700, 999, 1000, count - 1, -1, -2, -1000):
        if -count <= at < count:
            assert packed[at] == records[at]
        else:
            with pytest.raises(IndexError):
                packed[at]


def test_numbers_come_back_as_they_are() -> None:
    packed = Packed(Span)
    packed.append(Span(0, "saving", -0.0, math.inf))
    packed.pack()
    (found,) = packed
    assert math.copysign(1, found.begin) == -1
    assert found.end == math.inf
