"""The public face of the package, and what the command line costs."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from support import ROOT

import resilient

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = ROOT / ".github" / "workflows"
TRAIN_TWICE = """
import sys
sys.modules["orbax"] = None  # importing it fails
import numpy as np, keras, resilient

x = np.ones((8, 2), "float32")
for epochs in (1, 2):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    history = resilient.fit(
        model, x, x[:, :1], epochs=epochs, verbose=0, checkpoint_dir=sys.argv[1]
    )
print(len(history.history["loss"]))
"""


def test_the_command_line_loads_neither_keras_nor_a_backend(
    child_environment: dict[str, str],
) -> None:
    """It answers at once, and on machines where nothing else is installed."""
    code = (
        "import sys, resilient.cli.main\n"
        "heavy = {'keras', 'tensorflow', 'jax', 'torch', 'orbax', 'pandas', 'scipy'}\n"
        "heavy |= {'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert child.stdout == "[]\n"


def test_public_names_are_sorted_and_exist() -> None:
    """`__all__` is sorted and true."""
    assert resilient.__all__ == sorted(resilient.__all__)
    assert all(hasattr(resilient, name) for name in resilient.__all__)


@pytest.mark.skipif(os.environ["KERAS_BACKEND"] != "jax", reason="others have no Orbax")
def test_training_on_jax_needs_no_orbax(child_environment, tmp_path):
    """The extra `jax` does not bring it; `orbax` does, for imports and a callback."""
    child = subprocess.run(
        [sys.executable, "-c", TRAIN_TWICE, tmp_path / "run"],
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (child.returncode, child.stdout) == (0, "2\n"), child.stderr
    extras = PROJECT["optional-dependencies"]
    assert not any("orbax" in requirement for requirement in extras["jax"])
    assert any("orbax" in requirement for requirement in extras["orbax"])


@pytest.mark.once
def test_continuous_integration_tests_the_pythons_that_the_package_names():
    """No more, and no fewer; TensorFlow leaves one out as long as it has no wheels."""
    named = {
        found[1]
        for each in PROJECT["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each))
    }
    jobs = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]
    matrix = jobs["pythons"]["strategy"]["matrix"]
    usual = jobs["tests"]["steps"][1]["with"]["python-version"]
    assert {usual, *matrix["python"]} == named
    assert (
        f">= {min(named, key=lambda version: int(version[2:]))}"
        == (PROJECT["requires-python"])
    )
