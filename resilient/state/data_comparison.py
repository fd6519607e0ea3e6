"""Says in words how a run's data differs from a checkpoint's.

If the kind of data or the number of samples differs, nothing else is said: the rest
follows from that.
"""

from typing import Any

from resilient.serialization import JSON
from resilient.state.difference import Difference, line

_KINDS = {
    "generator": "a generator",
    "iterable": "an iterable",
    "grain": "a Grain dataset",
    "py_dataset": "a PyDataset",
    "tf.data": "a tf.data.Dataset",
    "torch DataLoader": "a torch DataLoader",
}


def data_differences(saved: JSON, live: JSON) -> list[Difference]:
    """How the facts of two runs whose names begin with ``data`` differ."""
    theirs, ours = (
        {k.removeprefix("data "): v for k, v in each.items() if k.startswith("data ")}
        for each in (saved, live)
    )
    if theirs.get("kind") != ours.get("kind"):
        was, now = (
            _KINDS.get(str(k), k) for k in (theirs.get("kind"), ours.get("kind"))
        )
        trained = f"the checkpoint was trained on {was}, this run trains on {now}"
        return [Difference("data", f"data: {trained}")]
    found, sizes = [], (theirs.get("samples"), ours.get("samples"))
    for name in (*theirs, *(k for k in ours if k not in theirs)):
        was, now = theirs.get(name), ours.get(name)
        if repr(was) == repr(now):
            continue
        text: str | None = line(f"data {name}", was, now)
        if name == "samples" and isinstance(was, int) and isinstance(now, int):
            text = f"data: {was:,} samples in the checkpoint, {now:,} now"
        elif _is_array(was) or _is_array(now):
            text = _of_array(was, now, samples=sizes[0] != sizes[1])
            text = text and f"data {name}: {text}"
        if text:
            of = "batch_size" if name == "batch_size" else "data"
            found.append(Difference(of, text))
    return found


def _is_array(fact: Any) -> bool:
    if not isinstance(fact, dict) or "dtype" not in fact:
        return False
    return isinstance(fact.get("shape"), list)


def _of_array(was: Any, now: Any, *, samples: bool) -> str | None:
    """How an array differs, beyond a difference in samples already reported."""
    if not (_is_array(was) and _is_array(now)):
        return "only in the checkpoint" if now is None else "not in the checkpoint"
    shapes = tuple(was["shape"]), tuple(now["shape"])
    skip = 1 if samples else 0
    if shapes[0][skip:] != shapes[1][skip:] or was["dtype"] != now["dtype"]:
        return (
            f"{shapes[0]} {was['dtype']} in the checkpoint, "
            f"{shapes[1]} {now['dtype']} now"
        )
    return None if samples else f"same shape {shapes[0]} and dtype, different values"
