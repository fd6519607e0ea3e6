"""A killed training stays one run in its tracker, with each step once."""

import os
import sqlite3
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "trackers.py"
WAITED = HERE.parent / "support" / "waited.py"
STEPS = list(range(1, 28))  # three epochs of nine batches
KILLS = (6, 11, 19)  # after saves of the steps 4, 8 or 9, and 16 or 18


def train(tracker, place, *, killed=()):
    """Train in a directory of its own; each of these kills, and then to the end."""
    place.mkdir()
    environment = os.environ | {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{place}/mlflow.db",
        "CUDA_VISIBLE_DEVICES": "",
    }
    for step in (*killed, None):
        command = [sys.executable, WAITED, EXAMPLE, tracker]
        kill = [] if step is None else [f"--kill-at={step}"]
        done = subprocess.run(
            [*map(str, command), *kill],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == (0 if step is None else -9), done.stderr[-4000:]


def records(log, block=32768):
    """The records of a file of W&B: LevelDB's log format after a header of 7 bytes."""
    at, record = 7, b""
    while at + 7 <= len(log):
        if block - at % block < 7:  # the rest of a block
            at += block - at % block
            continue
        _, size, kind = struct.unpack_from("<IHB", log, at)
        record += log[at + 7 : at + 7 + size]
        if at + 7 + size > len(log) or kind == 0:  # torn
            return
        at += 7 + size
        if kind in (1, 4):  # whole, last
            yield record
            record = b""


def of_wandb(place):
    """Ids, and by name and step the values in all files of the runs."""
    from wandb.proto import wandb_internal_pb2

    ids, values = set(), defaultdict(list)
    for path in sorted(place.glob("wandb/offline-run-*/run-*.wandb")):
        for data in records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                ids.add(record.run.run_id)
            if kind == "history":
                row = {
                    i.key or i.nested_key[0]: i.value_json for i in record.history.item
                }
                for name, value in row.items():
                    if not name.startswith("_"):
                        values[name, int(row["_step"])].append(float(value))
    return ids, values


def of_mlflow(place):
    ids, values = set(), defaultdict(list)
    rows = sqlite3.connect(place / "mlflow.db").execute(
        "select run_uuid, key, step, value from metrics"
    )
    for run, name, step, value in rows:
        ids.add(run)
        values[name, step].append(value)
    return ids, values


def of_tensorboard(place):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(place / "logs"), size_guidance={"scalars": 0})
    events.Reload()
    values = defaultdict(list)
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            values[name, event.step].append(event.value)
    return {"logs"}, values


@pytest.mark.timeout(900)
@pytest.mark.parametrize("read", [of_wandb, of_mlflow, of_tensorboard])
def test_one_run_with_each_step_once(read, tmp_path):
    tracker = read.__name__.removeprefix("of_")
    train(tracker, tmp_path / "whole")
    train(tracker, tmp_path / "killed", killed=KILLS)
    _, expected = read(tmp_path / "whole")
    ids, got = read(tmp_path / "killed")
    assert len(ids) == 1
    assert sorted(s for n, s in expected if n == "batch/loss") == STEPS
    assert sorted(s for n, s in expected if n == "epoch/val_loss") == [9, 18, 27]
    assert got.keys() == expected.keys()
    for key, values in got.items():
        if tracker == "wandb":  # the step is its key when the files are uploaded
            assert len(set(values)) == 1, key
            del values[1:]
        assert values == expected[key], key
