"""The public face of the package, and what the command line costs."""

import subprocess
import sys

import resilient


def test_the_command_line_loads_neither_keras_nor_a_backend(
    child_environment: dict[str, str],
) -> None:
    """It answers at once, and on machines where nothing else is installed."""
    code = (
        "import sys, resilient.cli.main\n"
        "heavy = {'keras', 'tensorflow', 'jax', 'torch', 'orbax', 'pandas', 'scipy'}\n"
        "heavy |= {'rich', 'shtab'}\n"
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
