"""The example of a shuffled pipeline shows what it promises."""

import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

pytestmark = pytest.mark.sources

EXAMPLE = Path(__file__).parents[3] / "examples" / "shuffled_tf_data.py"


@pytest.mark.long  # such pipelines are killed in tests/kill; this is four imports more
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="shuffled pipelines are killed on every backend in tests/kill",
)
@pytest.mark.timeout(600)
def test_each_sample_once_per_epoch_in_the_uninterrupted_order(
    tmp_path, child_environment
):
    """Its own verdict, line by line, in fresh processes that are really killed."""
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        env=child_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout
    # In the middle of the second epoch, of 36 batches each; at which one depends on
    # how far the write was that the kill met.
    resumed = re.search(r"Resumed at step (\d+) \(epoch 2, batch (\d+)\)", done.stdout)
    assert resumed is not None, done.stdout
    step, batch = map(int, resumed.groups())
    assert 0 < batch == step - 36
    told = [line for line in done.stdout.splitlines() if "each of" in line]
    assert len(told) == 3
    for line in told:
        assert "each of 1797 once: yes" in line
        assert line.endswith("order of the run left alone: yes")
