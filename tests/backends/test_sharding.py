"""JAX arrays spread over several devices: restored where they were."""

from pathlib import Path

import keras
import numpy as np
import pytest
from support import gang
from support.tensor_cases import differing

from resilient import backends
from resilient.backends import Backend
from resilient.backends.base import Part
from resilient.errors import NotSupportedError

CODE = """
import warnings
warnings.simplefilter("error")
import errno, jax, keras, numpy as np, sys
from resilient import backends
from resilient.backends import get_backend
from resilient.storage.refusals import disk_error

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
assert np.array_equal(backends.read(adapter.name, sys.argv[1])["x"], value)

elsewhere = keras.Variable(np.zeros((3, 4), "float32"))
elsewhere.assign(jax.device_put(elsewhere.value, jax.devices()[1]))
adapter.assign(elsewhere, value)
assert elsewhere.value.devices() == {jax.devices()[1]}

# A directory of that name cannot be made: no wait without end.
try:
    adapter.snapshot({"n" * 256: variable}).write(sys.argv[2])
except ValueError as error:
    assert disk_error(error) == errno.ENAMETOOLONG, error
else:
    raise AssertionError("written")
print("kept")
"""


def test_sharding_and_device_are_kept(
    backend: str, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """On two devices, which XLA makes of one CPU."""
    if backend != "jax":
        pytest.skip("only JAX spreads one tensor over devices")
    flags = child_environment["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"
    script = tmp_path / "script.py"
    script.write_text(CODE)
    saved, refused = tmp_path / "saved", tmp_path / "refused"
    saved.mkdir()
    refused.mkdir()
    xla = [{"XLA_FLAGS": flags}]
    ended = gang.run_with(xla, script, saved, refused, timeout=120)
    assert (ended.statuses, ended.outputs) == ([0], ["kept\n"])


def test_what_each_process_has_of_its_own_is_in_a_tree_of_its_own(
    adapter: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that only looks shared would be saved as process 0 has it."""
    if adapter.name != "jax":
        pytest.skip("about JAX's processes")
    import jax

    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with pytest.raises(NotSupportedError, match="not shared by all processes"):
        adapter.snapshot({"x": keras.Variable(np.ones(2))})
    first, second = Part(0, 2), Part(1, 2)
    adapter.snapshot({"x": np.ones(2)}).write(str(tmp_path), second)
    assert [path.name for path in tmp_path.iterdir()] == ["process-1-of-2"]
    monkeypatch.undo()
    adapter.snapshot({"x": np.zeros(2), "y": np.ones(1)}).write(str(tmp_path), first)
    both = {"x": np.ones(2), "y": np.ones(1)}
    assert differing(backends.read(adapter.name, str(tmp_path), second), both) == []
    both = {"x": np.zeros(2), "y": np.ones(1)}
    assert differing(backends.read(adapter.name, str(tmp_path), first), both) == []
