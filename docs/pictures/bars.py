"""Draw what saving costs, next to Keras's callbacks: `python docs/pictures/bars.py`."""

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


def main() -> None:
    """Draw both pictures."""
    stalls = "How long training stops for a save of 100 MB"
    style.save(chart(tables.stalls(), stalls), "stalls")
    fits = "Time of fit with a save every 50 batches, steps of 1 to 2 ms (without: 1 x)"
    style.save(chart(tables.fits(), fits), "fits")


if __name__ == "__main__":
    main()
