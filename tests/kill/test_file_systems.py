"""Training on a mounted file system that lacks abilities, killed and resumed."""

from pathlib import Path

import pytest
from support import lacking
from support.killed_fit import assert_same, ended

from resilient.telemetry.events import read_events

pytestmark = pytest.mark.spread

SCRIPT = """
import sys
from support.killed_fit import train

train(*sys.argv[1:])
"""


def test_a_run_on_a_mount_that_lacks_a_lot_is_killed_and_resumed(tmp_path):
    if why := lacking.why_not():
        pytest.skip(f"nothing can be mounted here: {why}")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    expected = ended(script, tmp_path / "local")[1]
    with lacking.mounted(tmp_path, "flock", "fsyncdir", "link") as mount:
        for kill in (5, 7):
            told, _ = ended(script, mount / "run", kill)
            assert told.count("does not lock files") == 1
            assert told.count("does not sync directories") == 1
        told, got = ended(script, mount / "run")
        restored = [e for e in read_events(mount / "run") if e["event"] == "restored"]
        assert len(restored) == 2
        names = {Path(path).name for path in (mount / "run").iterdir()}
        assert not [name for name in names if "tmp" in name]
    assert_same(got, expected)
