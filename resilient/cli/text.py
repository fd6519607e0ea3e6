"""What the commands print for people; ``--json`` prints the same data as JSON."""

import math
from collections.abc import Iterator
from typing import Any

from resilient.cli.style import BAD, GOOD, epoch_and_batch, place, say, table
from resilient.display import metrics, size
from resilient.serialization import JSON
from resilient.serialization.json_values import decode
from resilient.storage.manifest import Signature, has_key

_LONGEST = 100  # characters of a fact


def ls(data: JSON) -> None:
    """Print a line for each checkpoint, then the unusable ones."""
    rows = [
        (
            f"{each['step']:,}",
            *epoch_and_batch(each),
            each["created"],
            size(each["nbytes"]),
            metrics(each["metrics"]),
            "finished" if each["finished"] else "",
        )
        for each in data["checkpoints"]
    ]
    say(table(("step", "epoch", "batch", "saved", "size", "metrics", ""), rows))
    for each in data["unusable"]:
        say(f"{each['verdict']}: {each['name']}: {'; '.join(each['problems'])}", BAD)
    for each in data["quarantine"]:
        say(f"in quarantine: {each['name']}, {each['kind']}: {each['text']}")


def show(data: JSON) -> None:
    """Print what one checkpoint holds."""
    say(data["path"], "bold")
    state = "finished" if data["finished"] else "not finished"
    say(f"step {data['step']:,} ({place(data)}), {state}")
    say(f"saved {data['created']}, {size(data['nbytes'])}")
    say(f"metrics: {metrics(data['metrics']) or 'none'}")
    if data["repeated"]:
        counts = ", ".join(f"{count:,}" for count in data["repeated"])
        say(f"batches that repeated bit for bit after each resume: {counts}")
    for name, version in data["environment"].items():
        say(f"{name}: {version}")


def facts(run: JSON) -> Iterator[str]:
    """A line for each fact about a run but the variables."""
    variables = run.get("variables", [])
    trained = [v["shape"] for v in variables if v["name"].startswith("trainable.")]
    classes = [each["class"].rpartition(".")[2] for each in run.get("callbacks", [])]
    rates = decode(run["learning_rates"], {}) if "learning_rates" in run else {}
    found = {
        "trainable parameters": f"{sum(map(math.prod, trained)):,}",
        **run.get("fingerprint", {}).get("identity", {}),
        **(run.get("data") or {}),
        **{name: f"{rate:.6g} (set by the script)" for name, rate in rates.items()},
        "callbacks": classes,
        "stateful": list(run.get("stateful", {})),
        "imported from": run.get("source"),
    }
    for name, value in found.items():
        if text := _fact(value):
            yield f"{name}: {text}"
    for change in run.get("allowed", []):
        yield f"changed on purpose at step {change['step']:,}: {change['line']}"


def _fact(value: Any) -> str:
    """A fact without checksums of data, and not endless; empty if not known."""
    match value:
        case None:
            text = ""
        case {"shape": list(shape), "dtype": str(dtype)}:
            text = f"{_shape(shape)} {dtype}"
        case dict():
            text = ", ".join(f"{name} ({value[name]})" for name in value)
        case list():
            text = ", ".join(map(str, value))
        case _:
            text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def variables(run: JSON) -> list[tuple[str, str, str]]:
    """The path, shape and dtype of each variable of the model."""
    return [
        (f"{each['path'] or each['name']}", _shape(each["shape"]), f"{each['dtype']}")
        for each in run.get("variables", [])
        if each["name"].partition(".")[0] not in ("optimizer", "metrics")
    ]


def _shape(shape: list[Any]) -> str:
    return f"({', '.join(map(str, shape))})"


def verify(data: JSON) -> None:
    """Print a verdict for each checkpoint, with a line for each problem or remark.

    If no key is in use, unsigned checkpoints are not worth a remark.
    """
    signatures = {each["signature"] for each in data["checkpoints"]}
    keys = has_key() or signatures - {None, str(Signature.NONE)}
    for each in data["checkpoints"]:
        good = each["verdict"] == "good"
        say(f"{each['name']}: {each['verdict']}", GOOD if good else BAD)
        for problem in each["problems"]:
            say(f"  {problem}")
        if keys and each["signature"] is not None:
            say(f"  {each['signature']}")
        for name in each["unlisted"]:
            say(
                f"  {name} is not listed in the manifest: it was added later, and is "
                "not read"
            )


def prune(data: JSON) -> None:
    """Print what was deleted and what was kept."""
    verb = "Would delete" if data["dry_run"] else "Deleted"
    removed = ", ".join(f"{step:,}" for step in data["removed"]) or "nothing"
    kept = ", ".join(f"{step:,}" for step in data["kept"])
    say(f"{verb}: {removed} ({size(data['nbytes'])}). Kept: {kept}.")
