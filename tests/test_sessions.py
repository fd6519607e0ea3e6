"""Nothing is lost: each test that nox spreads over backends and sessions is run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from support import BACKENDS, ROOT

SHARES = 3
# What sessions a test is in, and whether it is marked `long`. One that is skipped on
# this backend does not count.
COLLECT = f"""
import json, os, sys
import pytest

SESSIONS = ["short", *(f"long:{{n + 1}}/{SHARES}" for n in range({SHARES}))]

class Collected:
    def pytest_collection_finish(self, session):
        from support.sessions import Session, is_skipped

        found = {{
            item.nodeid: [
                item.get_closest_marker("long") is not None,
                [Session.parse(s).has(item, sys.argv[1]) for s in SESSIONS],
            ]
            for item in session.items if not is_skipped(item)
        }}
        print("\\n" + json.dumps(found))

arguments = ["--collect-only", "-qq", "-p", "no:cacheprovider", "tests"]
sys.exit(pytest.main(arguments, [Collected()]))
"""


def collected(backend: str) -> dict[str, tuple[bool, list[bool]]]:
    """By test, whether it is long, and whether the short session and shares have it."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, backend],
        env=os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith('{"'))
    return json.loads(line)


@pytest.mark.sources  # all backends are installed there
@pytest.mark.long
@pytest.mark.skipif(keras.backend.backend() != "torch", reason="it starts every one")
@pytest.mark.timeout(900)
def test_each_test_is_run_by_some_backend_and_left_to_one_share_by_the_others():
    short, every = set(), set()
    for backend in BACKENDS:
        found = collected(backend)
        assert len(found) > 1000
        for name, (is_long, (is_short, *shares)) in found.items():
            assert is_short + sum(shares) == 1, name
            assert not (is_long and is_short), name
            if not is_long:
                every.add(name)
            if is_short:
                short.add(name)
    assert every - short == set()
