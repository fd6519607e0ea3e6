"""How the pictures look, on white pages and on dark ones."""

from pathlib import Path

import altair as alt

FOLDER = Path(__file__).parent
WIDTH = 680
# Ours, Keras's, and the reference; each can be told apart without colour, too.
OURS, KERAS, OTHER = "#1f77d0", "#e4572e", "#9aa0a6"
# Of a stacked bar, from its beginning.
PARTS = ["#9aa0a6", "#c6a15b", "#1f77d0", "#7b5ea7", "#e4572e"]
INK = {"light": ("#24292f", "#d8dee4"), "dark": ("#e6edf3", "#3d444d")}


def save(chart: alt.TopLevelMixin, name: str) -> None:
    """Write `name-light.svg` and `name-dark.svg`; both are transparent."""
    for scheme, (ink, line) in INK.items():
        axis = {"labelColor": ink, "titleColor": ink, "gridColor": line}
        axis |= {"domainColor": line, "tickColor": line, "titleFontWeight": "normal"}
        styled = (
            chart.configure(
                background="transparent", font="Helvetica, Arial, sans-serif"
            )
            .configure_view(stroke=None)
            .configure_axis(**axis, labelFontSize=12, titleFontSize=12)
            .configure_legend(labelColor=ink, titleColor=ink, labelFontSize=13)
            .configure_header(labelColor=ink, titleColor=ink, labelFontSize=13)
            .configure_title(color=ink, fontSize=14)
            .configure_text(color=ink, fontSize=12)
        )
        styled.save(FOLDER / f"{name}-{scheme}.svg")
