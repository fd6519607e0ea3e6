"""Two processes: each compares for itself, and they agree on what they say."""

import re
import signal
from pathlib import Path

import keras
import pytest
from interrupts import found
from support.gang import run

TEXT = r"NotExactError: (.*)\n(?:\[rank\d\]: )?(.*)"
WORKER = Path(__file__).with_name("witness_worker.py")


def attempt(directory, kill=0, loses=-1):
    return run(WORKER, directory, kill, loses, ends_at_once=bool(kill))


@pytest.mark.long  # as one process does
def test_both_count_what_repeated(tmp_path):
    assert attempt(tmp_path, 11).statuses[1] == -signal.SIGKILL
    attempt(tmp_path).check()
    ((name, count),) = found(tmp_path)
    assert name == "repeated"
    assert count in (2, 3, 4)  # saved at step 8; the other one ends when it can
    assert (tmp_path / "witness-1").exists()


@pytest.mark.spread(over=["tensorflow", "torch"])
@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="all processes train with one program"
)
def test_what_one_of_them_lost_both_name(tmp_path):
    assert attempt(tmp_path, 11, 1).statuses[1] == -signal.SIGKILL
    ended = attempt(tmp_path, loses=1).check(1, 1)
    texts = [re.findall(TEXT, each) for each in ended.outputs]
    assert texts[0] == texts[1]
    assert "batch 1 of the " in texts[0][0][1]
