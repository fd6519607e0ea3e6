"""The benchmark of saves to object stores runs, and measures everybody in it."""

import subprocess
import sys

import pytest
from support.snippets import ROOT

BESIDE = {"s3": {"Lightning", "s3fs"}, "gs": {"Lightning", "Orbax", "gcsfs"}}


@pytest.mark.parametrize("store", BESIDE)
def test_everybody_saves(store):
    run = ROOT / "benchmarks" / "remote" / "run.py"
    small = ("--megabytes", "1", "--saves", "1", "--turns", "1")
    done = subprocess.run(
        [sys.executable, run, "--store", store, *small],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = [line.split("│") for line in done.stdout.splitlines() if "│" in line]
    named = {name.strip() for _, name, *_, far, _ in rows if "to" in far}
    assert named >= BESIDE[store] | {"resilient.Run"}, done.stdout
