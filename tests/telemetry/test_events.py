"""What happened, line by line; never a reason to stop training."""

import json
import logging
import math
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from resilient.storage import files
from resilient.telemetry.attempts import attempt_starts, read_attempts
from resilient.telemetry.events import Events, read_events

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch):
    """Pytest gives the path of a test that is over to another one."""
    monkeypatch.setattr(files, "said", set())


def test_events_are_appended_in_order_with_who_and_when(tmp_path):
    events = Events(tmp_path)
    events.emit("saved", step=10)
    events.emit("fell back", checkpoint="step-00000010", reason="run.json is missing")
    first, second = read_events(tmp_path)
    assert first["event"] == "saved"
    assert first["step"] == 10
    assert second["reason"] == "run.json is missing"
    assert first["pid"] == os.getpid()
    assert first["attempt"] == second["attempt"] == events.attempt
    assert first["time"] <= second["time"]
    assert first["host"]


def test_another_attempt_appends_and_has_another_name(tmp_path):
    Events(tmp_path).emit("saved")
    Events(tmp_path).emit("restored")
    first, second = read_events(tmp_path)
    assert [first["event"], second["event"]] == ["saved", "restored"]
    assert first["attempt"] != second["attempt"]


def test_each_line_is_strict_json(tmp_path):
    """What JSON lacks is written as text, so that other tools can read it."""
    Events(tmp_path).emit(
        "odd",
        nan=math.nan,
        big=np.int64(3),
        small=np.float32(0.5),
        path=Path("a"),
        nested={"x": [1, (math.inf, None)], 3: True},
        text="two\nlines",
    )

    def refuse(constant):
        raise AssertionError(constant)

    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    event = json.loads(line, parse_constant=refuse)
    assert (event["nan"], event["big"], event["small"]) == ("nan", 3, 0.5)
    assert event["path"] == "a"
    assert event["nested"] == {"x": [1, ["inf", None]], "3": True}
    assert event["text"] == "two\nlines"


def test_a_directory_without_events_has_none(tmp_path):
    assert list(read_events(tmp_path)) == []


@pytest.mark.parametrize("torn", [b'{"event": "sav', b"\xff\xfe", b'"a string"', b""])
def test_a_line_torn_by_a_kill_costs_itself_only(tmp_path, torn):
    """It may lack its end: the next attempt starts a line of its own."""
    Events(tmp_path).emit("first")
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(torn)
    events = Events(tmp_path)
    events.emit("second")
    events.emit("third")
    names = [event["event"] for event in read_events(tmp_path)]
    assert names == ["first", "second", "third"]


def test_one_event_is_one_write(tmp_path, monkeypatch):
    """Two processes that append at once cannot mix their lines."""
    written, write = [], os.write
    monkeypatch.setattr(os, "write", lambda *args: written.append(args) or write(*args))
    Events(tmp_path).emit("saved", text="x" * 10_000)
    assert len(written) == 1


def test_a_file_that_cannot_be_written_is_reported_once_and_stops_nothing(
    tmp_path, caplog
):
    seen = []
    events = Events(tmp_path / "missing", on_event=seen.append)
    with caplog.at_level(logging.WARNING):
        events.emit("saved")
        events.emit("saved")
    assert [record.message[:32] for record in caplog.records] == [
        "Events are no longer recorded: ["
    ]
    assert len(seen) == 2
    assert not (tmp_path / "missing").exists()


def test_a_line_cut_off_by_a_full_disk_does_not_swallow_the_next(tmp_path, monkeypatch):
    events, write = Events(tmp_path), os.write
    events.emit("first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
        events.emit("cut off")
    events.emit("last")
    names = [event["event"] for event in read_events(tmp_path)]
    assert names == ["first", "last"]


def test_on_event_gets_what_is_written(tmp_path):
    seen = []
    Events(tmp_path, on_event=seen.append).emit("saved", loss=math.nan)
    assert seen == list(read_events(tmp_path))
    assert seen[0]["loss"] == "nan"


def test_an_on_event_that_raises_is_the_callers_own_bug(tmp_path):
    def bug(_event):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Events(tmp_path, on_event=bug).emit("saved")
    assert len(list(read_events(tmp_path))) == 1


def test_a_record_that_cannot_be_read_stops_nothing(tmp_path, caplog):
    (tmp_path / "events.jsonl").mkdir()
    assert list(read_events(tmp_path)) == []
    assert "Earlier events in" in caplog.text
    assert "cannot be read" in caplog.text


STARTED = '{"event": "started", "time": 5, "attempt": "a", "host": "h", "pid": 7'
MALFORMED = {
    "no host": '{"event": "started", "time": 5, "attempt": "a", "pid": 7}',
    "a time that is text": STARTED.replace("5", '"5"') + "}",
    "a time that is not finite": STARTED.replace("5", "NaN") + "}",
    "a time of 5,000 digits": STARTED.replace("5", "5" * 5000) + "}",
    "a pid that is none": STARTED.replace("7", "-7") + "}",
    "a pid too large for the system": STARTED.replace("7", str(1 << 31)) + "}",
    "a host that is a list": STARTED.replace('"h"', '["h"]') + "}",
    "a step that is text": STARTED + ', "step": "3"}',
    "a place that is a number": STARTED + ', "where": [3]}',
    "odd last words": STARTED + ', "previous": {"attempt": "a"}}',
    "nested 100,000 deep": STARTED + ', "x": ' + "[" * 100_000,
    "well nested 100,000 deep": STARTED + f', "x": {"[" * 100_000}{"]" * 100_000}}}',
    "a list": '["started"]',
    "too long": STARTED + ', "x": "' + "x" * (1 << 20) + '"}',
    "complete, and then too long": STARTED + "}" + " " * (1 << 21) + "x",
}


@pytest.mark.parametrize("line", MALFORMED.values(), ids=list(MALFORMED))
def test_a_line_that_is_no_event_is_left_out_and_told_once(tmp_path, caplog, line):
    first, last = Events(tmp_path), Events(tmp_path)
    first.emit("started")
    with open(tmp_path / "events.jsonl", "a") as file:
        file.write(f"{line}\n{line}\n")
    last.emit("started", other={"any": ["thing", None]})
    for _ in range(2):
        assert len(attempt_starts(read_attempts(tmp_path))) == 2
        events = list(read_events(tmp_path))
        assert [event["attempt"] for event in events] == [first.attempt, last.attempt]
    assert events[1]["other"] == {"any": ["thing", None]}
    (record,) = caplog.records
    assert "Line 2 of " in record.message


def test_a_line_without_end_takes_no_memory(tmp_path):
    Events(tmp_path).emit("started")
    os.truncate(tmp_path / "events.jsonl", 100_000_000)
    Events(tmp_path).emit("started")
    tracemalloc.start()
    try:
        attempts = attempt_starts(read_attempts(tmp_path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(attempts) == 2
    assert peak < 10_000_000


def test_a_file_of_absurd_size_is_not_read(tmp_path, caplog):
    Events(tmp_path).emit("started")
    os.truncate(tmp_path / "events.jsonl", 1 << 40)
    assert attempt_starts(read_attempts(tmp_path)) == []
    assert "larger than 1,073,741,824 bytes" in caplog.text


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "directory"])
def test_what_is_no_regular_file_is_neither_read_nor_written(tmp_path, caplog, kind):
    target, place = tmp_path / "target", tmp_path / "run" / "events.jsonl"
    place.parent.mkdir()
    Events(tmp_path).emit("started")
    os.rename(tmp_path / "events.jsonl", target)
    before = target.read_bytes()
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        place.symlink_to(target if kind == "link" else tmp_path / "nowhere")
    assert attempt_starts(read_attempts(place.parent)) == []
    events = Events(place.parent)
    events.emit("started")
    events.emit("saved")
    assert len(caplog.records) == 2  # of reading, and of writing
    assert target.read_bytes() == before
    assert not (tmp_path / "nowhere").exists()


def test_a_name_that_is_no_text_is_strict_json_all_the_same(tmp_path):
    Events(tmp_path).emit(
        "failed", message="half \udc80", other={"\udc80": Path("\udc80")}
    )
    (event,) = read_events(tmp_path)
    assert event["message"] == r"half \udc80"
    assert event["other"] == {r"\udc80": r"\udc80"}


def test_what_is_made_has_the_mode_that_the_umask_leaves(tmp_path):
    before = os.umask(0o077)
    try:
        Events(tmp_path).emit("started")
    finally:
        os.umask(before)
    assert (tmp_path / "events.jsonl").stat().st_mode & 0o777 == 0o600
