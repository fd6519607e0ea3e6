"""Formats sizes, times and metrics for people, and detects notebooks."""

import sys
from collections.abc import Mapping


def in_ipython() -> bool:
    """Whether this process runs IPython or Jupyter cells."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def duration(seconds: float) -> str:
    """A duration: to a tenth of a second below a minute, to the second above."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def size(nbytes: int | None) -> str:
    """A number of bytes in decimal units, to three digits; empty if unknown."""
    if nbytes is None:
        return ""
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"


def metrics(values: Mapping[str, float | str]) -> str:
    """Metrics on one line; NaN and infinities come as text."""
    return ", ".join(f"{name} {float(x):.4g}" for name, x in values.items())
