"""Checks that the libraries of the extra ``report`` are installed."""

from importlib.util import find_spec

from resilient.errors import BackendNotAvailableError

_NEEDED = ("altair", "jinja2", "vl_convert")


def require() -> None:
    """Raise if charts cannot be drawn.

    Raises:
        BackendNotAvailableError: A library is missing.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise BackendNotAvailableError(
            "Charts need libraries that are not installed.",
            received=f"no {', '.join(missing)}",
            hint='Install them: pip install "keras-resilient[report]". The report in '
            "the terminal, and `resilient watch`, need none of them.",
        )
