"""Run by a test: a snapshot of a variable that lives on a server."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from resilient import backends
from resilient.backends import get_backend
from resilient.backends.base import HeldTensors

SERVER = Path(__file__).parents[2] / "examples" / "tensorflow_server.py"


def free_address() -> str:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{each.getsockname()[1]}"


def main(directory: str) -> None:
    cluster = {"ps": [free_address()]}
    task = {"cluster": cluster, "task": {"type": "ps", "index": 0}}
    server = subprocess.Popen(
        [sys.executable, SERVER],
        env=os.environ | {"TF_CONFIG": json.dumps(task)},
        stdin=subprocess.PIPE,
    )
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster))
    with tf.device("/job:ps/task:0"):
        variable = tf.Variable(np.arange(5.0))
    backend = get_backend()
    snapshot = backend.snapshot({"variable": variable})
    assert isinstance(snapshot, HeldTensors)
    assert "/job:ps/" in variable.device
    assert "/job:ps/" not in snapshot.held["variable"].device
    variable.assign_add(np.ones(5))
    backend.assign(variable, np.full(5, 9.0))
    assert np.array_equal(variable.numpy(), np.full(5, 9.0))
    snapshot.write(directory)
    assert np.array_equal(
        backends.read(backend.name, directory)["variable"], np.arange(5.0)
    )
    print("every byte is there", flush=True)
    server.kill()
    os._exit(0)  # TensorFlow would wait for the server


if __name__ == "__main__":
    main(sys.argv[1])
