"""JAX arrays spread over several devices: saved whole, restored where they were."""

import subprocess
import sys

import pytest

CODE = """
import jax, keras, numpy as np, sys
from resilient.backends import get_backend

devices = keras.distribution.list_devices()
assert len(devices) == 2
mesh = keras.distribution.DeviceMesh((2,), ["x"], devices)
layout = keras.distribution.TensorLayout([None, "x"], mesh)
variable = keras.Variable(np.zeros((3, 4), "float32"))
spread = keras.distribution.distribute_tensor(variable.value, layout)
variable.assign(spread)
before = variable.value.sharding
assert not before.is_fully_replicated

adapter = get_backend()
value = np.arange(12, dtype="float32").reshape(3, 4)
adapter.assign(variable, value)
assert variable.value.sharding == before, (before, variable.value.sharding)
adapter.snapshot({"x": variable}).write(sys.argv[1])
assert adapter.read(sys.argv[1])["x"].tobytes() == value.tobytes()

elsewhere = keras.Variable(np.zeros((3, 4), "float32"))
elsewhere.assign(jax.device_put(elsewhere.value, jax.devices()[1]))
adapter.assign(elsewhere, value)
assert elsewhere.value.devices() == {jax.devices()[1]}
print("kept")
"""


def test_sharding_and_device_are_kept(
    backend: str, tmp_path: object, child_environment: dict[str, str]
) -> None:
    """On two devices, which XLA makes of one CPU."""
    if backend != "jax":
        pytest.skip("only JAX spreads one tensor over devices")
    flags = child_environment["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE, str(tmp_path)],
        env=child_environment | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout == "kept\n"
