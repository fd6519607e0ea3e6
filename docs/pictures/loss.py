"""Draw the loss of an uninterrupted training, and of two that were killed.

    KERAS_BACKEND=jax python docs/pictures/loss.py RUNS

Runs `digits.py` in `RUNS` three times: uninterrupted; killed (SIGKILL) in mid-epoch and
resumed by `keras.callbacks.BackupAndRestore`; and the same with keras-resilient.
Existing runs are reused. Nothing is drawn unless keras-resilient's losses are those of
the uninterrupted run.
"""

import csv
import subprocess
import sys
from pathlib import Path

import altair as alt
import style

KILL, BATCHES, MEAN = 107, 60, 5  # step of the kill, batches per epoch, and per mean
WAYS = {
    "nothing": "left alone",
    "BackupAndRestore": "killed, then BackupAndRestore",
    "resilient": "killed, then keras-resilient",
}


def train(way: str, directory: Path) -> None:
    """Train to the end, in a second process if the first one was killed."""
    directory.mkdir(parents=True)
    program = Path(__file__).with_name("digits.py")
    command = [sys.executable, str(program), way, str(directory), str(KILL)]
    if way == "nothing":
        command[-1] = "-1"
    else:
        subprocess.run(command, check=False)
        assert (directory / "killed").exists(), "the process should have killed itself"
    subprocess.run(command, check=True)


def losses(directory: Path) -> list[tuple[int, float]]:
    """The step and the loss of each batch, in the order in which they were trained."""
    with (directory / "losses.csv").open() as file:
        return [(int(step), float(loss)) for step, loss in csv.reader(file)]


def smooth(points: list[tuple[int, float]], way: str, part: str) -> list[dict]:
    """The points to draw: means over the last few batches."""
    found = []
    for at, (step, _) in enumerate(points):
        last = [loss for _, loss in points[max(0, at + 1 - MEAN) : at + 1]]
        mean = sum(last) / len(last)
        found.append({"step": step, "loss": mean, "way": WAYS[way], "part": part})
    return found


def rows(runs: Path) -> list[dict]:
    """All lines of the picture; raises if ours differs from the uninterrupted one."""
    alone, keras, ours = (losses(runs / way) for way in WAYS)
    assert set(ours) == set(alone), "every batch, trained once or twice, has its loss"
    # What Keras trains after the kill gets a line of its own.
    before, after = keras[:KILL], keras[KILL:]
    return [
        *smooth(alone, "nothing", "all"),
        *smooth(before, "BackupAndRestore", "before"),
        *smooth(after, "BackupAndRestore", "after"),
        *smooth(sorted(set(ours)), "resilient", "all"),
    ]


def lines(data: alt.Data, way: str, width: float, dash: list[int]) -> alt.Chart:
    """The lines of one training."""
    colors = [style.OTHER, style.KERAS, style.OURS]
    scale = alt.Scale(domain=list(WAYS.values()), range=colors)
    legend = alt.Legend(
        title=None, labelLimit=300, orient="top", symbolStrokeWidth=4, columnPadding=24
    )
    return (
        alt.Chart(data)
        .transform_filter(alt.datum.way == WAYS[way])
        .mark_line(strokeWidth=width, strokeDash=dash, clip=True)
        .encode(
            x=alt.X("step:Q", title="batch").axis(values=list(range(0, 181, 30))),
            y=alt.Y("loss:Q", title=f"loss, mean of {MEAN} batches")
            .scale(type="log", nice=False)
            .axis(values=[0.2, 0.5, 1, 2]),
            color=alt.Color("way:N", scale=scale, legend=legend),
            detail="part:N",
        )
    )


def note(step: float, loss: float, text: str, align: str = "left") -> alt.Chart:
    """A remark in the picture."""
    place = alt.Data(values=[{"step": step, "loss": loss, "text": text}])
    return (
        alt.Chart(place)
        .mark_text(align=align, lineBreak="\n", lineHeight=15, baseline="top")
        .encode(x="step:Q", y="loss:Q", text="text:N")
    )


def picture(found: list[dict]) -> alt.LayerChart:
    """The three trainings, and what happened to two of them."""
    data = alt.Data(values=found)
    kill = alt.Chart(alt.Data(values=[{"step": KILL}]))
    again = alt.Chart(alt.Data(values=[{"from": BATCHES, "to": KILL}]))
    return alt.layer(
        again.mark_rect(color=style.KERAS, opacity=0.1).encode(x="from:Q", x2="to:Q"),
        kill.mark_rule(strokeDash=[2, 3], color=style.OTHER).encode(x="step:Q"),
        lines(data, "nothing", 6, []),
        lines(data, "BackupAndRestore", 2, []),
        lines(data, "resilient", 2, [5, 3]),
        note(KILL + 1.5, 2.6, "SIGKILL"),
        note(
            BATCHES - 2,
            0.36,
            "BackupAndRestore trains these\nbatches again, in another order,"
            "\non the weights of batch 100",
            "right",
        ),
        note(129, 0.75, "keras-resilient: the same loss\nas without the kill"),
    ).properties(width=style.WIDTH, height=270)


def main(runs: str) -> None:
    """Train what is missing, and draw."""
    for way in WAYS:
        if not Path(runs, way).exists():
            train(way, Path(runs, way))
    style.save(picture(rows(Path(runs))), "loss")


if __name__ == "__main__":
    main(*sys.argv[1:])
