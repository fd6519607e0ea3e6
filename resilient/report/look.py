"""Colours, heights and dashes of charts: the Okabe-Ito palette, legible without it.

Colours are CSS variables, which follow the reader's theme and change for printing.
"""

from collections.abc import Mapping
from typing import Any

# Each part of a run's time: its colour in the light and the dark theme, and the height
# of its bars in pixels.
PARTS: Mapping[str, tuple[str, str, int]] = {
    "productive": ("#009e73", "#1fb58a", 16),
    "saving": ("#0072b2", "#4aa8e0", 12),
    "starting": ("#8a8a8a", "#a0a0a0", 8),
    "restoring": ("#cc79a7", "#e094bf", 12),
    "replaying": ("#e69f00", "#f0b429", 8),
    "lost": ("#d55e00", "#f0793a", 16),
    "down": ("#b0b0b0", "#6a6a6a", 3),
}
SERIES: Mapping[str, tuple[str, str]] = {
    "first": ("#0072b2", "#56b4e9"),
    "second": ("#d55e00", "#f0793a"),
    "third": ("#009e73", "#1fb58a"),
    "fourth": ("#a3477f", "#e094bf"),
    "fifth": ("#9a6b00", "#f0b429"),
    "sixth": ("#555555", "#bbbbbb"),
}
INK: Mapping[str, tuple[str, str]] = {
    "ink": ("#1b1f24", "#e6e8eb"),
    "faint": ("#5f6873", "#a2abb6"),
    "grid": ("#e2e5e9", "#343a42"),
    "paper": ("#ffffff", "#14171b"),
    "panel": ("#f6f7f9", "#1c2026"),
    "fault": ("#b3261e", "#ff8a80"),
}
DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [4, 1], [1, 3])
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
SANS = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def themes() -> tuple[dict[str, str], dict[str, str]]:
    """The CSS variables of the light and the dark theme."""
    every = {
        **{f"part-{name}": values[:2] for name, values in PARTS.items()},
        **{f"series-{name}": values for name, values in SERIES.items()},
        **INK,
    }
    light = {name: values[0] for name, values in every.items()}
    return light, {name: values[1] for name, values in every.items()}


def color(name: str) -> str:
    """A colour by its name in ``themes``."""
    return f"var(--{name})"


def config() -> dict[str, Any]:
    """The Vega-Lite configuration that all charts share."""
    faint, grid = map(color, ("faint", "grid"))
    axis = {
        "labelColor": faint,
        "titleColor": faint,
        "gridColor": grid,
        "domainColor": grid,
        "tickColor": grid,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 160,
    }
    return {
        "background": "transparent",
        "font": SANS,
        "view": {"stroke": None},
        "axis": axis,
    }
