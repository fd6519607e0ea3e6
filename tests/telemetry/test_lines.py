"""Lines are the same from either end, however a file is cut into blocks."""

import io

import pytest

from resilient.telemetry import events

pytestmark = pytest.mark.once

FILES = {
    "nothing": b"",
    "one line": b"a\n",
    "a torn end": b"a1\nb2\na3",
    "blank lines": b"\n\na1\n\n",
    "lines as long as a block": b"a" * 7 + b"\n" + b"a" * 8 + b"\n" + b"b" * 8 + b"\n",
    "overlong lines": b"a1\n"
    + b"a" * 40
    + b"\nb2\n"
    + b"x" * 30
    + b"a\na5\n"
    + b"a" * 20,
    "carriage returns": b"a1\r\nb\ra\n",
}


@pytest.mark.parametrize("content", FILES.values(), ids=list(FILES))
@pytest.mark.parametrize("having", [(), (b"a",), (b"b", b"5")])
@pytest.mark.parametrize("longest", [2, 3, 8, 1 << 20])
def test_both_ends_find_the_same(monkeypatch, content, having, longest):
    monkeypatch.setattr(events, "LONGEST", longest)
    every = [line[: longest + 1] for line in content.splitlines(keepends=True)]
    if b"\r" in content:  # ends no line
        every = [b"a1\r\n"[: longest + 1], b"b\ra\n"[: longest + 1]]
    wanted = [
        (number, line)
        for number, line in enumerate(every, 1)
        if not having or any(text in line for text in having)
    ]
    assert list(events.forwards(io.BytesIO(content), having)) == wanted
    found = list(events.backwards(io.BytesIO(content), having))
    assert found == [line for _, line in reversed(wanted)]


def test_the_end_is_found_without_the_beginning():
    file = io.BytesIO(b"old\n" * events.LONGEST + b"new\n")
    assert next(events.backwards(file, [b"new"])) == b"new\n"
    assert file.tell() > 2 * events.LONGEST
