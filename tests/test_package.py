"""What importing the package costs, and what its public face is."""

import importlib.util
import subprocess
import sys

import pytest

import resilient
from resilient.backends import get_backend

LAZY = ("tensorflow", "jax", "torch", "orbax", "keras", "pandas", "scipy", "sklearn")


@pytest.mark.parametrize("module", ["resilient", "resilient.cli"])
def test_importing_loads_neither_a_backend_nor_keras(
    module: str, child_environment: dict[str, str]
) -> None:
    """A command line or a script that never trains does not wait for a backend."""
    if importlib.util.find_spec(module) is None:
        pytest.fail(f"{module} does not exist")
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & set({LAZY!r})))"
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert child.stdout.split() == []


def test_public_names_are_sorted_and_exist() -> None:
    """`__all__` is sorted and true."""
    assert resilient.__all__ == sorted(resilient.__all__)
    assert all(hasattr(resilient, name) for name in resilient.__all__)


def test_a_missing_backend_names_the_pip_command() -> None:
    """Asking for a backend whose library is absent tells how to install it."""
    names = {"tensorflow", "jax", "torch"}
    missing = sorted(name for name in names if importlib.util.find_spec(name) is None)
    for name in missing:
        with pytest.raises(resilient.BackendNotAvailableError) as refusal:
            get_backend(name)
        assert f'pip install "keras-resilient[{name}]"' in str(refusal.value)
    assert missing, "run this where not every backend is installed"
