"""The real Ray Train starts killed workers again, stops them, and loses a machine."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import EXAMPLES

from resilient.telemetry.events import read_events

ray = pytest.importorskip("ray", reason="Ray is not installed")

pytestmark = pytest.mark.timeout(1800)
LONG = "--epochs=40"


def start(
    directory: Path, environment: dict[str, str], *options: str
) -> subprocess.Popen[str]:
    """The example, and what its workers say, each in full."""
    quiet = {
        "PYTHONUNBUFFERED": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    script = EXAMPLES / "ray_workers.py"
    return subprocess.Popen(
        [sys.executable, script, "--checkpoint-dir", directory, *options],
        env=environment | quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """All that is said from now on."""
    text, _ = process.communicate(timeout=600)
    assert process.returncode == 0, text[-8000:]
    return text


def digests(text: str) -> dict[str, str]:
    return dict(re.findall(r"worker (\d) of 2: digest (\w{64})", text))


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        if words in line:
            return
        said += line
    raise AssertionError(said)


@pytest.fixture(scope="module")
def alone(child_environment, tmp_path_factory):
    """Digests of a run left alone, by the number of epochs."""
    found: dict[str, dict[str, str]] = {}

    def run(epochs: str) -> dict[str, str]:
        if epochs not in found:
            directory = tmp_path_factory.mktemp("alone")
            text = ended(start(directory, child_environment, epochs))
            found[epochs] = digests(text)
            assert found[epochs]["0"] == found[epochs]["1"]
            assert "Ray's newest checkpoint: Checkpoint(" in text
        return found[epochs]

    return run


def test_killed_in_mid_epoch_workers_end_with_the_digest_of_a_run_left_alone(
    alone, tmp_path, child_environment
):
    kill = ("--kill-worker=1", "--at-step=25")
    text = ended(start(tmp_path, child_environment, *kill))
    assert re.findall(r"Resumed at step (16|24) \(epoch 2, batch ", text)
    assert digests(text) == alone("--epochs=3")


def test_asked_to_stop_the_driver_ends_well_and_the_same_command_goes_on(
    alone, tmp_path, child_environment
):
    process = start(tmp_path, child_environment, LONG)
    wait_for(process, "Epoch 2/")
    process.send_signal(signal.SIGTERM)
    text = ended(process)
    (stopped,) = {*re.findall(r"Stopped at (step \d+) .* by stop file: saved", text)}
    assert {*re.findall(r"worker (\d) of 2: stopped", text)} == {"0", "1"}
    text = ended(start(tmp_path, child_environment, LONG))
    assert f"Resumed at {stopped} " in text
    assert digests(text) == alone(LONG)


def test_a_machine_that_ray_drains_is_left_with_a_checkpoint(
    alone, tmp_path, child_environment
):
    """At its deadline, Ray ends its workers, and starts them on another."""
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        first = cluster.add_node(num_cpus=2, **small)
        address = {"RAY_ADDRESS": cluster.address}
        process = start(tmp_path, child_environment | address, LONG, "--save-freq=1000")
        wait_for(process, "Epoch 2/")
        cluster.add_node(num_cpus=2, **small)
        subprocess.run(
            [
                *(Path(sys.executable).with_name("ray"), "drain-node"),
                *("--address", cluster.address, "--node-id", first.node_id),
                *("--reason", "DRAIN_NODE_REASON_PREEMPTION"),
                *("--reason-message", "spot", "--deadline-remaining-seconds", "10"),
            ],
            env=os.environ,
            check=True,
            timeout=120,
        )
        text = ended(process)
    finally:
        cluster.shutdown()
    assert "Source: preemption" in text
    (resumed,) = {*re.findall(r"Resumed at step (\d+) ", text)}
    saved = [each for each in read_events(tmp_path) if each["event"] == "saved"]
    (step,) = [each for each in saved if each["step"] == int(resumed)]
    assert step["batch"] != 0  # nothing but the callback asked for it
    assert digests(text) == alone(LONG)
