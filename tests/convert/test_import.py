"""Importing costs no backend, and a missing one is named with its pip command."""

import subprocess
import sys
from typing import Any

import pytest

# Makes libraries look as if they had never been installed.
WITHOUT = """
import sys
class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NotInstalled())
"""


def run(code: str, environment: dict[str, str]) -> str:
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_importing_the_package_loads_no_backend(
    child_environment: dict[str, str],
) -> None:
    """Nor Keras, nor the seam's own modules that would need one."""
    code = (
        "import sys, resilient, resilient.backends\n"
        "heavy = {'keras', 'tensorflow', 'jax', 'jaxlib', 'torch', 'orbax'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert run(code, child_environment) == "[]\n"


def _where(backend: str, *values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.spread(over=[backend]))


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        _where("torch", "tensorflow", "tensorflow"),
        _where("torch", "jax", "jax"),
        _where("jax", "jax", "tensorstore"),
        _where("jax", "torch", "torch"),
    ],
)
def test_a_missing_library_names_the_pip_command(
    child_environment: dict[str, str], backend: str, name: str, missing: str
) -> None:
    """The error is an ImportError too, and says which library it was."""
    if backend == name and missing == name:
        pytest.skip("then Keras itself cannot be imported: see the next test")
    if backend != name and missing == "tensorstore":
        pytest.skip("JAX itself is not installed")
    code = (
        f"MISSING = {missing!r},{WITHOUT}"
        "from resilient.backends import get_backend\n"
        "try:\n"
        f"    get_backend({name!r})\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error.name.partition('.')[0])\n"
        "    print(error)\n"
    )
    first, *message = run(code, child_environment).splitlines()
    assert first == f"BackendNotAvailableError {missing}"
    assert f"No module named '{missing}" in message[1]
    assert message[2] == f'Install it with: pip install "keras-resilient[{name}]"'


def test_a_missing_backend_of_keras_names_the_pip_command(
    child_environment: dict[str, str], backend: str
) -> None:
    """Keras is configured for a backend that is not there, and fails to import."""
    code = (
        f"MISSING = {backend!r},{WITHOUT}"
        "from resilient.backends import get_backend\n"
        "from resilient.errors import BackendNotAvailableError\n"
        "try:\n"
        "    get_backend()\n"
        "except BackendNotAvailableError as error:\n"
        "    print(error)\n"
    )
    output = run(code, child_environment)
    assert output.endswith(f'pip install "keras-resilient[{backend}]"\n')


def test_a_backend_that_does_not_train_is_refused(
    child_environment: dict[str, str],
) -> None:
    """Keras also runs on numpy and OpenVINO, where there is nothing to resume."""
    code = (
        "from resilient.backends import get_backend\n"
        "from resilient.errors import NotSupportedError\n"
        "try:\n"
        "    get_backend('numpy')\n"
        "except NotSupportedError as error:\n"
        "    print(error)\n"
    )
    output = run(code, child_environment)
    assert "Received: 'numpy'" in output
    assert "KERAS_BACKEND" in output
