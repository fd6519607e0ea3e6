"""What happened, line by line; never a reason to stop training."""

import json
import logging
import math
import os
from pathlib import Path

import numpy as np
import pytest

from resilient.telemetry.events import Events, read_events

pytestmark = pytest.mark.once


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
    assert read_events(tmp_path) == []


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
    assert [record.message[:35] for record in caplog.records] == [
        "Events are not recorded any more: ["
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
    assert seen == read_events(tmp_path)
    assert seen[0]["loss"] == "nan"


def test_an_on_event_that_raises_is_the_callers_own_bug(tmp_path):
    def bug(_event):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Events(tmp_path, on_event=bug).emit("saved")
    assert len(read_events(tmp_path)) == 1


def test_a_record_that_cannot_be_read_stops_nothing(tmp_path, caplog):
    (tmp_path / "events.jsonl").mkdir()
    assert read_events(tmp_path) == []
    assert "Earlier events cannot be read" in caplog.text
