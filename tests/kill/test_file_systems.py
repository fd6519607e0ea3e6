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


@pytest.mark.parametrize("lacks", ["flock,fsyncdir,rename,link", "atomic"])
def test_a_run_on_a_mount_is_killed_and_resumed(tmp_path, lacks):
    """One that lacks a lot, and one that renames as s3fs does."""
    if why := lacking.why_not():
        pytest.skip(f"nothing can be mounted here: {why}")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    expected = ended(script, tmp_path / "local")[1]
    with lacking.mounted(tmp_path, *lacks.split(",")) as mount:
        for kill in (5, 7):
            told, _ = ended(script, mount / "run", kill)
            assert told.count("does not lock files") == ("flock" in lacks)
            assert told.count("does not sync directories") == ("fsyncdir" in lacks)
        told, got = ended(script, mount / "run")
        restored = [e for e in read_events(mount / "run") if e["event"] == "restored"]
        assert len(restored) == 2
        names = {Path(path).name for path in (mount / "run").iterdir()}
        assert not [name for name in names if "unfinished" in name or "tmp" in name]
    assert_same(got, expected)
