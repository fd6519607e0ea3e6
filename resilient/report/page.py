"""Renders a report as one HTML file that needs no network.

It embeds Vega and Vega-Lite, and a policy that forbids the browser to load anything
else. Names and texts come from untrusted files, so the template escapes all of them.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from resilient.errors import printable
from resilient.report.charts import Chart
from resilient.report.look import config, themes


@dataclass(frozen=True)
class Key:
    """An entry of a chart's legend.

    Attributes:
        name: What the colour stands for.
        color: The colour's name in ``look.themes``.
        dash: The dash pattern of a line, in SVG's syntax; None if it is not a line.
        height: The height of a bar in pixels; 0 if it is not a bar.
        path: The SVG path of a symbol.
        hollow: Whether the symbol is only an outline.
    """

    name: str
    color: str
    dash: str | None = None
    height: int = 0
    path: str = ""
    hollow: bool = False


@dataclass(frozen=True)
class Figure:
    """A chart with a caption and a legend.

    Attributes:
        id: The element's id in the page.
        caption: A description of the chart.
        chart: The Altair chart.
        keys: The entries of the legend.
        note: A note on what is not drawn, if anything.
    """

    id: str
    caption: str
    chart: Chart
    keys: Sequence[Key] = ()
    note: str = ""

    @property
    def spec(self) -> Markup:
        """The chart as JSON that cannot close a script element."""
        found = self.chart.to_dict() | {"config": config()}
        text = json.dumps(found, allow_nan=False)
        for character in "<>&":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return Markup(text)  # noqa: S704  # it has no characters special in HTML


@dataclass(frozen=True)
class Table:
    """A table of numbers and texts.

    Attributes:
        id: The element's id in the page.
        caption: A description of the table.
        columns: The names of the columns.
        rows: The rows, with a cell per column; the first cell is the row's name.
        right: The columns to align right.
        prose: The columns whose texts may be long.
        folded: Whether the table is collapsed at first.
    """

    id: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[str] = ()
    prose: Collection[str] = ("is", "reason", "metrics", "before", "after", "version")
    folded: bool = False


@dataclass(frozen=True)
class Section:
    """A section of the page, with a heading."""

    title: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Tile:
    """A number at the top of the page."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        title: The heading.
        about: The line below the heading.
        tiles: The numbers at the top.
        sections: The sections below them.
        footer: The source of the numbers.
    """

    title: str
    about: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    footer: str = "Made by `resilient report` from the events of the run."

    def html(self) -> str:
        """The whole HTML file."""
        environment = Environment(autoescape=True, finalize=_shown)
        light, dark = themes()
        page = environment.from_string(_file("page.html")).render(
            {name: getattr(self, name) for name in self.__dataclass_fields__},
            css=_ours(_file("page.css")),
            library=_ours(_library().replace("</script", "<\\/script")),
            light=_variables(light),
            dark=_variables(dark),
        )
        return str(page)


def _shown(value: Any) -> Any:
    return printable(value) if type(value) is str else value


def _ours(text: str) -> Markup:
    return Markup(text)  # noqa: S704  # our own files and Vega's


def _variables(colors: Mapping[str, str]) -> dict[str, Markup]:
    return {name: _ours(color) for name, color in colors.items()}


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed, in one script."""
    from altair.utils._importers import vl_version_for_vl_convert as version
    from vl_convert import javascript_bundle

    return str(javascript_bundle(vl_version=version()))
