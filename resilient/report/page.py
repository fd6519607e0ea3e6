"""Renders a report as one HTML file that asks the network for nothing.

Vega and Vega-Lite are in it, and a policy that lets a browser load nothing else. Names
and texts come from files that anybody may have written: the template escapes all.
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
from resilient.report.look import Look, themes


@dataclass(frozen=True)
class Key:
    """What a colour of a chart means.

    Attributes:
        name: The meaning.
        color: As of ``look.themes``.
        dash: Of a line, as SVG writes it; None: it is no line.
        height: Of a bar, in pixels; 0: it is none.
        path: Of a symbol, in SVG.
        hollow: Whether that is only an outline.
    """

    name: str
    color: str
    dash: str | None = None
    height: int = 0
    path: str = ""
    hollow: bool = False


@dataclass(frozen=True)
class Figure:
    """A chart with what it shows in words.

    Attributes:
        id: In the page.
        caption: What it shows.
        chart: Of Altair.
        keys: Its legend.
        note: What is not drawn, if anything is not.
    """

    id: str
    caption: str
    chart: Chart
    keys: Sequence[Key] = ()
    note: str = ""

    @property
    def spec(self) -> Markup:
        """It as JSON that ends no script."""
        found = self.chart.to_dict() | {"config": Look(on_page=True).config()}
        text = json.dumps(found, allow_nan=False)
        for character in "<>&":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return Markup(text)  # noqa: S704  # nothing in it is special in HTML


@dataclass(frozen=True)
class Table:
    """Numbers and texts.

    Attributes:
        id: In the page.
        caption: What they are.
        columns: Their names.
        rows: As many cells each; the first is a name.
        right: Columns of numbers.
        prose: Columns of texts that may be long.
        folded: Whether it is hidden at first.
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
    """A part of the page under a heading."""

    title: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Tile:
    """A number that is seen first."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        title: Its heading.
        about: One line below.
        tiles: Numbers.
        sections: The rest.
        footer: Where the numbers come from.
    """

    title: str
    about: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    footer: str = "Made by `resilient report` from the events of the run."

    def html(self) -> str:
        """The file."""
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
    return Markup(text)  # noqa: S704  # from our own files and from Vega's


def _variables(colors: Mapping[str, str]) -> dict[str, Markup]:
    return {name: _ours(color) for name, color in colors.items()}


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed."""
    from altair.utils._importers import vl_version_for_vl_convert as version
    from vl_convert import javascript_bundle

    return str(javascript_bundle(vl_version=version()))
