"""What is left in the file is known after a kill, or unknown, and never wrong."""

import random
import subprocess
import sys

import pytest

from resilient.witness.ring import FIELDS, Ring

pytestmark = pytest.mark.once

KEY = 77


def ring(directory, step=0, *, key=KEY, continues=True):
    return Ring(directory, "witness", key, step, continues=continues)


def value(step, field):
    return (step * 3 + FIELDS.index(field)) * 0x123456789ABCDEF % 2**64


def note(into, steps):
    for step in steps:
        for field in FIELDS:
            into.note(step, field, value(step, field))


def expected(steps):
    return {step: {field: value(step, field) for field in FIELDS} for step in steps}


def test_what_was_noted_is_found_after_the_checkpoint(tmp_path):
    note(ring(tmp_path, 3), range(4, 20))
    assert ring(tmp_path, 12).found == expected(range(13, 20))
    note(ring(tmp_path, 12), range(20, 22))
    assert ring(tmp_path, 5).found == expected(range(6, 22))


def test_nothing_is_found_of_another_attempt(tmp_path):
    """Of another key, of a step before its beginning, or if it is not continued."""
    note(ring(tmp_path, 3), range(4, 20))
    assert ring(tmp_path, 2).found == {}
    for given in ({"key": KEY + 1}, {"continues": False}):
        note(ring(tmp_path, 3, continues=False), range(4, 20))
        assert ring(tmp_path, 3, **given).found == {}
        assert ring(tmp_path, 3).found == {}


def test_what_is_forgotten_is_not_found(tmp_path):
    left = ring(tmp_path)
    note(left, range(1, 9))
    left.forget(range(4, 9))
    assert ring(tmp_path).found == expected(range(1, 4))
    left = ring(tmp_path)
    left.note(7, "loss", 5)  # and nothing else comes back with its step
    assert ring(tmp_path).found == expected(range(1, 4)) | {7: {"loss": 5}}
    left = ring(tmp_path)
    left.forget(range(1, 20_000))
    assert ring(tmp_path).found == {}


def test_the_last_steps_of_a_long_run_are_found(tmp_path):
    note(ring(tmp_path), range(1, 10_000))
    assert (tmp_path / "witness").stat().st_size < 1 << 20
    kept = ring(tmp_path, 9_000).found
    assert kept == expected(range(9_001, 10_000))


@pytest.mark.parametrize("seed", range(3))
def test_damage_makes_words_unknown_and_none_of_them_wrong(tmp_path, seed):
    draw = random.Random(seed)
    note(ring(tmp_path), range(1, 1_000))
    path, right = tmp_path / "witness", expected(range(1, 1_000))
    content = path.read_bytes()
    for size in [1, 8, 64, 4096] * 10:
        damaged = bytearray(content)
        at = draw.randrange(len(content) if draw.random() < 0.3 else 64_000)
        kind = draw.choice([bytes(size), b"\xff" * size, draw.randbytes(size)])
        moved = draw.randrange(0, 64_000, 8)  # words of another step, say
        kind = content[moved : moved + size] if draw.random() < 0.3 else kind
        damaged[at : at + size] = kind
        path.write_bytes(damaged[: len(content)])
        for step, fields in ring(tmp_path).found.items():
            assert fields.items() <= right.get(step, {}).items()


KILLS = """
import os, signal, sys
from pathlib import Path
from resilient.witness.ring import FIELDS, Ring

def value(step):
    return step * 0x123456789ABCDEF % 2**64

def write(begun):
    ring, step = Ring(Path(sys.argv[1]), "witness", 7, 0, continues=False), 0
    while True:
        step += 1
        for field in FIELDS:
            ring.note(step, field, value(step))
        if step == 1000:
            os.write(begun, b".")

for _ in range(50):
    end, begun = os.pipe()
    child = os.fork()
    if child == 0:
        write(begun)
    os.read(end, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(end), os.close(begun)
    found = Ring(Path(sys.argv[1]), "witness", 7, 0, continues=True).found
    assert len(found) >= 999
    for step, fields in found.items():
        assert set(fields.values()) == {value(step)}, step
"""


def test_a_kill_between_any_two_stores_leaves_nothing_wrong(
    tmp_path, child_environment
):
    command = [sys.executable, "-c", KILLS, tmp_path]
    subprocess.run(command, env=child_environment, check=True)
