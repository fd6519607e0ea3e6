"""Draw what saving and recovering cost, next to Keras's callbacks.

python docs/pictures/bars.py
"""

import altair as alt
import style
import tables


def chart(rows: list[dict], title: str) -> alt.FacetChart:
    """Bars for each way to save, one column for each backend."""
    colors = [style.OURS] + [style.KERAS] + [style.OTHER] * 2
    scale = alt.Scale(domain=list(tables.WAYS), range=colors)
    backends = list(tables.BACKENDS.values())
    most = max(row["value"] for row in rows)
    base = alt.Chart().encode(
        x=alt.X("value:Q", axis=None).scale(domain=[0, 1.35 * most]),
        y=alt.Y("way:N", sort=None, title=None).axis(
            ticks=False, domain=False, labelLimit=200, labelPadding=8
        ),
    )
    bars = base.mark_bar(height={"band": 0.7}).encode(
        color=alt.Color("way:N", scale=scale, legend=None)
    )
    labels = base.mark_text(align="left", dx=4).encode(text="label:N")
    return (
        alt.layer(bars, labels, data=alt.Data(values=rows))
        .properties(width=170, height=100)
        .facet(
            column=alt.Column("backend:N", sort=backends, title=None),
            spacing=16,
            padding={"left": 30},
            title=alt.Title(title, anchor="start", fontWeight="normal", offset=8),
        )
    )


def stacked(rows: list[dict], title: str) -> alt.FacetChart:
    """A bar for each way to save, made of parts; one row for each backend."""
    scale = alt.Scale(domain=list(tables.PARTS), range=style.PARTS)
    legend = alt.Legend(title=None, orient="top", columnPadding=24)
    base = alt.Chart().encode(
        y=alt.Y("way:N", sort=None, title=None).axis(
            ticks=False, domain=False, labelLimit=260, labelPadding=8
        )
    )
    bars = base.mark_bar(height={"band": 0.7}).encode(
        x=alt.X("value:Q", title="seconds"),
        color=alt.Color("part:N", scale=scale, legend=legend),
        order="at:Q",
    )
    labels = base.transform_filter("datum.at == 0").mark_text(align="left", dx=4)
    labels = labels.encode(x="whole:Q", text="label:N")
    return (
        alt.layer(bars, labels, data=alt.Data(values=rows))
        .properties(width=style.WIDTH - 240, height=alt.Step(26))
        .facet(
            row=alt.Row("backend:N", sort=list(tables.BACKENDS.values()), title=None),
            spacing=16,
            title=alt.Title(title, anchor="start", fontWeight="normal", offset=8),
        )
        .resolve_scale(y="independent")
    )


def main() -> None:
    """Draw the pictures of tables."""
    stalls = "How long training stops for a save of 100 MB"
    style.save(chart(tables.stalls(), stalls), "stalls")
    fits = "Time of fit with a save every 50 batches, steps of 1 to 2 ms (without: 1 x)"
    style.save(chart(tables.fits(), fits), "fits")
    recovery = "From SIGKILL in mid-epoch to the next new batch"
    if rows := tables.recovery():
        style.save(stacked(rows, recovery), "recovery")


if __name__ == "__main__":
    main()
