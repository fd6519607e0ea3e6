"""What ``resilient report`` prints for people."""

import time

from resilient.cli.style import BAD, GOOD, Rows, say, when
from resilient.display import duration, metrics, size
from resilient.serialization import JSON

_OUTCOMES = {
    "died": "exited without reporting an error",
    "unknown": "none (running, or died)",
}
_SHOWN = 20  # faults, and environment changes
STYLES = {"alive": GOOD, "ended": GOOD, "dead": BAD, "failed": BAD, "diverged": BAD}


def report_text(data: JSON) -> None:
    """Print what one run did, or one line per run for several."""
    (_several if "runs" in data else _one)(data)


def _several(data: JSON) -> None:
    rows = Rows(
        *("run", "goodput", "time", "step", "epoch", "attempts", "faults", "saved"),
        *("metrics", "state"),
    )
    for run in data["runs"]:
        saves, epoch = run["saves"], run["epoch"]
        rows.add(
            run["name"],
            f"{run['goodput']:.1%}",
            duration(run["seconds"]["whole"]),
            f"{run['steps']['surviving']:,}",
            "" if epoch is None else f"{epoch:,}",
            f"{len(run['attempts']):,}",
            f"{len(run['faults']):,}",
            when(utc(saves["last"])) if saves["count"] else "never",
            metrics(run["metrics"]),
            "",
            marks={run["state"]: STYLES.get(run["state"], "")},
        )
    rows.print()
    for each in data["unreadable"]:
        say(f"unreadable: {each['name']}: {each['message']}", BAD)
    if not data["complete"]:
        say("and perhaps more: there are too many directories to search them all")


def _one(data: JSON) -> None:
    """Print where a run's time went, a line per attempt, and what went wrong."""
    seconds = data["seconds"]
    say(f"goodput {data['goodput']:.1%} of {duration(seconds['whole'])}")
    rows = Rows("part", "time", "share")
    for name, value in seconds.items():
        if name != "whole":
            share = value / seconds["whole"] if seconds["whole"] else 0.0
            rows.add(name, duration(value), f"{share:.1%}")
    rows.print()
    say(_steps(data))
    if data["metrics"]:
        say(f"metrics: {metrics(data['metrics'])}")
    _saves(data)
    _attempts(data)
    _faults(data["faults"])
    _changes(data["changes"])


def _steps(data: JSON) -> str:
    """The steps that survived and those that were lost, as far as is known.

    A killed process trained a little further than its last sign of life shows.
    """
    surviving, lost = data["steps"]["surviving"], data["steps"]["lost"]
    if not any(attempt["outcome"] == "died" for attempt in data["attempts"]):
        return f"steps: {surviving:,}, plus {lost:,} lost"
    known = f"plus at least {lost:,} lost" if lost else "none known to be lost"
    return f"steps: {surviving:,}, {known} (a killed attempt leaves no exact count)"


def _saves(data: JSON) -> None:
    saves = data["saves"]
    if saves["count"]:
        seconds, sizes = saves["seconds"], saves["nbytes"]
        say(
            f"saves: {saves['count']:,}, {size(sizes['median'])} each; written in "
            f"{seconds['median']:.2f} s (longest {seconds['longest']:.2f} s), while "
            f"training waited {saves['stalls']:.2f} s in all"
        )
    if late := data["postponed_saves"]:
        say(
            "saves postponed because the previous one was still being written: "
            f"{late:,}"
        )


def _attempts(data: JSON) -> None:
    rows = Rows(
        *("attempt", "started", "time", "from step", "repeated", "to step", "end"),
        "host",
    )
    for attempt in data["attempts"]:
        rows.add(
            attempt["attempt"],
            utc(attempt["started"]),
            duration(attempt["ended"] - attempt["started"]),
            f"{attempt['restored'] or 0:,}",
            "" if attempt["repeated"] is None else f"{attempt['repeated']:,}",
            f"{attempt['step']:,}",
            _OUTCOMES.get(attempt["outcome"], attempt["outcome"]),
            attempt["host"],
        )
    rows.print()


def _faults(faults: list[JSON]) -> None:
    if not faults:
        return
    rows = Rows("fault", "at", "attempt", "step", "reason")
    for fault in faults[-_SHOWN:]:
        attempt, step = fault["attempt"], fault["step"]
        rows.add(
            fault["kind"],
            utc(fault["time"]),
            "" if attempt is None else f"{attempt:,}",
            "" if step is None else f"{step:,}",
            " ".join(fault["why"].split()) or "not known",
        )
    rows.print()
    if len(faults) > _SHOWN:
        say(f"and {len(faults) - _SHOWN:,} earlier ones, which --json lists")


def _changes(changes: list[JSON]) -> None:
    for change in changes[-_SHOWN:]:
        before, after = change["before"] or "none", change["after"] or "none"
        what = f"{change['name']} {before} -> {after}"
        say(f"changed for attempt {change['attempt']:,}: {what}")
    if len(changes) > _SHOWN:
        say(f"and {len(changes) - _SHOWN:,} earlier changes, which --json lists")


def utc(seconds: float) -> str:
    """A time in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
