"""Compares a run with a checkpoint's, and says in words what differs.

Another model, optimizer or data is another run: a resume is refused, and the
differences are listed, without what only follows from another one. Settings that
training could go on with warn once, and the script's value wins.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from resilient.errors import warn_not_exact
from resilient.serialization import JSON
from resilient.state.training_only import is_training_only

_LAYER_SETTING = re.compile(r"(layer \d+) \((\w+)\) (\w+)")
_SPREAD = ("device mesh", "replicas", "sums between processes")
_KINDS = {
    "generator": "a generator",
    "iterable": "an iterable",
    "grain": "a Grain dataset",
    "py_dataset": "a PyDataset",
    "tf.data": "a tf.data.Dataset",
    "torch DataLoader": "a torch DataLoader",
}


@dataclass(frozen=True)
class Difference:
    """One difference, in words.

    Attributes:
        of: What differs: ``"data"``, ``"optimizer"``, ``"config"``, ``"run"``...
        line: How.
    """

    of: str
    line: str


def identity_differences(
    saved: JSON, live: JSON, *, layers: bool = True
) -> list[Difference]:
    """What makes the checkpoint another run's.

    Args:
        saved: The fingerprint in the checkpoint.
        live: That of this run.
        layers: Whether the layers are known; otherwise they are left out.
    """
    theirs, ours = saved["identity"], live["identity"]
    # The others have their own words, or nothing to compare yet.
    own = ("data ", "inputs of layer ", "layers", "dtype policies", "objects")
    mine, yours = (
        {k: v for k, v in each.items() if not k.startswith(own)}
        for each in (theirs, ours)
    )
    found = [
        Difference("optimizer" if line.startswith("optimizer:") else "run", line)
        for line in differences(mine, yours)
    ]
    if layers:
        found += _layer_differences(saved, live)
    if "objects" in ours:
        pair = theirs.get("objects", {}), ours["objects"]
        found += [Difference("run", f"objects: {x}") for x in _names(*pair)]
    return found + data_differences(theirs, ours)


def data_differences(saved: JSON, live: JSON) -> list[Difference]:
    """How the data differs: facts whose names begin with ``data``, of two runs."""
    theirs, ours = (
        {k.removeprefix("data "): v for k, v in each.items() if k.startswith("data ")}
        for each in (saved, live)
    )
    if theirs.get("kind") != ours.get("kind"):
        was, now = (_KINDS.get(str(k), k) for k in (theirs.get("kind"), ours["kind"]))
        trained = f"the checkpoint was trained on {was}, this run on {now}"
        return [Difference("data", f"data: {trained}")]
    found, sizes = [], (theirs.get("samples"), ours.get("samples"))
    for name in (*theirs, *(k for k in ours if k not in theirs)):
        was, now = theirs.get(name), ours.get(name)
        if repr(was) == repr(now):
            continue
        if name == "samples":
            text: str | None = f"data: {was:,} samples in the checkpoint, {now:,} now"
            text = text if all(sizes) else _line("data samples", was, now)
        elif _is_array(was) or _is_array(now):
            text = _of_array(was, now, samples=sizes[0] != sizes[1])
            text = text and f"data {name}: {text}"
        else:
            text = _line(f"data {name}", was, now)
        if text:
            found.append(Difference("batch_size" if "batch" in name else "data", text))
    return found


def _is_array(fact: Any) -> bool:
    return isinstance(fact, dict) and {"shape", "dtype"} <= fact.keys()


def _of_array(was: Any, now: Any, *, samples: bool) -> str | None:
    """How an array differs, unless only in the number of samples that was said."""
    if was is None or now is None:
        return "not in the checkpoint" if was is None else "only in the checkpoint"
    shapes = tuple(was["shape"]), tuple(now["shape"])
    skip = 1 if samples else 0
    if shapes[0][skip:] != shapes[1][skip:] or was["dtype"] != now["dtype"]:
        return (
            f"{shapes[0]} {was['dtype']} in the checkpoint, "
            f"{shapes[1]} {now['dtype']} now"
        )
    return None if samples else f"same shape {shapes[0]} and dtype, other values"


def _layer_differences(saved: JSON, live: JSON) -> list[Difference]:
    theirs, ours = saved["identity"], live["identity"]
    was, now = theirs.get("layers", []), ours.get("layers", [])
    if was != now:
        return [Difference("run", line) for line in _edits("layer", was, now)]
    policies = zip(
        theirs.get("dtype policies", []), ours.get("dtype policies", []), strict=False
    )
    found = [
        f"layer {i} ({now[i]}): dtype policy {old} in the checkpoint, {new} now"
        for i, (old, new) in enumerate(policies)
        if old != new
    ]
    inputs = (k for k in {**theirs, **ours} if k.startswith("inputs of layer "))
    found += [
        f"{name.removeprefix('inputs of ')}: it is called on other inputs"
        for name in inputs
        if repr(theirs.get(name)) != repr(ours.get(name))
    ]
    function = _of_function(saved, live)
    return [
        *(Difference("run", line) for line in found),
        *(
            Difference("config", line)
            for line in differences(*_picked(saved, live, function))
        ),
    ]


def _of_function(saved: JSON, live: JSON) -> set[str]:
    """Names of the settings that decide which function the model computes."""
    theirs, ours = saved["settings"], live["settings"]
    found = set()
    for name in {**theirs, **ours}:
        layer = _LAYER_SETTING.fullmatch(name)
        # Another version of Keras may name what was always there.
        both = name in theirs and name in ours
        if layer and (both or theirs.get("keras") == ours.get("keras")):
            _, kind, setting = layer.groups()
            if not is_training_only(kind, setting):
                found.add(name)
    return found


def _picked(saved: JSON, live: JSON, names: set[str]) -> tuple[JSON, JSON]:
    theirs, ours = (
        {k: v for k, v in each["settings"].items() if k in names}
        for each in (saved, live)
    )
    return theirs, ours


def refrozen(saved: JSON, live: JSON) -> list[str]:
    """Which layers are frozen in one of two runs only, in words; of equal layers."""
    now: dict[bool, int] = {True: 0, False: 0}
    for name, value in live["settings"].items():
        was = saved["settings"].get(name)
        if name.endswith(" trainable") and {was, value} == {True, False}:
            now[value] += 1
    return [
        f"{n} layer{'s are' if n > 1 else ' is'} {a} that {'were' if n > 1 else 'was'} "
        f"{b}"
        for n, a, b in (
            (now[True], "trainable", "frozen"),
            (now[False], "frozen", "trainable"),
        )
        if n
    ]


def warn_of_settings(saved: JSON, live: JSON) -> None:
    """Warn of what changed but does not block; arguments as above."""
    left_out = {*_of_function(saved, live), *_SPREAD}
    theirs, ours = (
        {k: v for k, v in each["settings"].items() if k not in left_out}
        for each in (saved, live)
    )
    changed = differences(theirs, ours) + _of_devices(saved, live)
    changed += differences(saved["determinism"], live["determinism"])
    if changed:
        warn_not_exact(
            "these settings changed since the checkpoint; training goes on with this "
            "script's",
            changed,
        )


def _of_devices(saved: JSON, live: JSON) -> list[str]:
    """On how many devices or replicas the runs trained, where that differs."""
    was, now = (_devices(each["settings"]) for each in (saved, live))
    line = f"devices: the checkpoint was trained on {was}, this run trains on {now}"
    return [line] if was != now else []


def _devices(settings: JSON) -> str:
    mesh, replicas = settings.get("device mesh"), settings.get("replicas")
    found = "one device"
    if mesh:
        found = f"a mesh of {' x '.join(map(str, mesh))} devices"
    elif replicas:
        found = f"{replicas} replicas"
    several = settings.get("sums between processes")
    if several is None:
        return found
    return f"{found} in {'several processes' if several else 'one process'}"


def differences(saved: JSON, live: JSON, *, other: str = "this run has") -> list[str]:
    """Which facts differ, one line each.

    Args:
        saved: Those of a checkpoint, by name.
        live: What they are compared with.
        other: Whose ``live`` are, in words.
    """
    return [
        _line(name, saved.get(name), live.get(name), other)
        for name in (*saved, *(k for k in live if k not in saved))
        # repr: nan equals itself, True is not 1
        if repr(saved.get(name)) != repr(live.get(name))
    ]


def _line(name: str, was: Any, now: Any, other: str = "this run has") -> str:
    return f"{name}: the checkpoint has {_short(was)}, {other} {_short(now)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def edits(was: Sequence[str], now: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """What makes one list of names of the other: what is done, and where in each.

    Yields:
        ``"insert"``, ``"delete"`` or ``"replace"``, of one name each.
    """
    for what, i, end, j, stop in SequenceMatcher(
        None, was, now, autojunk=False
    ).get_opcodes():
        for k in range(max(end - i, stop - j) if what != "equal" else 0):
            if i + k < end and j + k < stop:
                yield "replace", i + k, j + k
            elif i + k < end:
                yield "delete", i + k, stop
            else:
                yield "insert", end, j + k


def _edits(thing: str, was: Sequence[str], now: Sequence[str]) -> list[str]:
    found = []
    for what, i, j in edits(was, now):
        if what == "replace":
            line = f"{i}: the checkpoint has a {was[i]}, this model a {now[j]}"
        elif what == "insert":
            line = f"{j}: this model has a {now[j]} that the checkpoint does not have"
        else:
            line = f"{i}: the checkpoint has a {was[i]} that this model does not have"
        found.append(f"{thing} {line}")
    return found


def _names(was: JSON, now: JSON) -> list[str]:
    """How named things differ, such as the objects of a loop."""
    return [
        *(f"`{n}` is not in the checkpoint" for n in now if n not in was),
        *(f"`{n}` is only in the checkpoint" for n in was if n not in now),
        *(
            _line(f"`{n}`", was[n], now[n])
            for n in now
            if n in was and repr(was[n]) != repr(now[n])
        ),
    ]
