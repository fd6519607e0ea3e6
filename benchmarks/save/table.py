"""Tables of what was measured."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table


def of_components(found: Mapping[str, Any]) -> Table:
    """One size of state."""
    nbytes, limits = found["nbytes"], found["limits"]
    table = _table(
        f"{found['backend']} on {found['device']}: {nbytes / 1e6:.1f} MB of state in "
        f"{found['tensors']} tensors",
        ("stall ms", "/ memcpy", "save ms", "/ write", "restore ms", "/ read"),
        ("damage", "memory"),
    )
    notes = [
        "limits: "
        + ", ".join(
            f"{name.replace('_', ' ')} {1e3 * spent:.2f} ms "
            f"({nbytes / spent / 1e9:.1f} GB/s)"
            for name, spent in limits.items()
        ),
        "damage: whether a restore notices that one bit changed",
        "memory: the most that a save adds to that of the process, / state",
    ]
    for name, one in found["subjects"].items():
        mark = "" if one["flushes"] else " *"
        if not one["restores_all"]:
            mark += " **"
        cells = [c for of in ("stall", "save", "restore") for c in _cells(one[of])]
        memory = one["memory"]
        table.add_row(
            name + mark,
            *cells,
            "seen" if one["sees_damage"] else "-",
            f"{memory['ratio']:.2f}" if memory else "",
        )
    if any(not one["flushes"] for one in found["subjects"].values()):
        notes.append("* leaves its files in the page cache: flushed here, and timed")
    if any(not one["restores_all"] for one in found["subjects"].values()):
        notes.append("** does not restore all variables bit for bit")
    notes += [f"left out: {line}" for line in found["left_out"]]
    table.caption = "\n".join(notes)
    return table


def of_epochs(found: Mapping[str, Any], backend: str) -> Table:
    """Time of an epoch beside that of `model.fit`."""
    table = _table(
        f"{_fits(found, backend)}: epochs of {found['steps']} batches, us a batch",
        ("model.fit", "with it", "ratio", "quartiles", "of shortest"),
    )
    for name, one in found["ways"].items():
        scale = 1e6 / found["steps"]
        low, _, high = one["quartiles"]
        table.add_row(
            name + _missed(one),
            f"{one['limit'] * scale:.0f}",
            f"{one['median'] * scale:.0f}",
            f"{one['ratio']:.3f}",
            f"{low:.3f}-{high:.3f}",
            f"{one['of_shortest']:.3f}",
        )
    return table


def of_added(found: Mapping[str, Any], backend: str) -> Table:
    """Time that a save adds to training."""
    table = _table(
        f"{_fits(found, backend)}: what a save adds to training, the steps after it "
        "included",
        ("added ms", "memcpy ms", "/ memcpy", "quartiles", "of shortest"),
        ("of 50 batches",),
    )
    for name, one in found["ways"].items():
        low, _, high = one["quartiles"]
        table.add_row(
            name + _missed(one),
            *_cells(one)[:1],
            f"{one['limit'] * 1e3:.2f}",
            f"{one['ratio']:.2f}",
            f"{low:.2f}-{high:.2f}",
            f"{one['of_shortest']:.2f}",
            f"{one['of_50_batches']['ratio']:.1%}",
        )
    return table


def _fits(found: Mapping[str, Any], backend: str) -> str:
    return (
        f"{backend}, {found['nbytes'] / 1e6:.1f} MB, one compute thread "
        f"({found['cores']:.2f} cores busy), steps of {found['step'] * 1e3:.1f} ms"
    )


def _missed(one: Mapping[str, Any]) -> str:
    if one.get("made") == one.get("due"):
        return ""
    return f" ({one['made']} of {one['due']} saves)"


def _cells(one: Mapping[str, Any]) -> tuple[str, str]:
    return f"{one['median'] * 1e3:.2f}", f"{one['ratio']:.2f}"


def _table(title: str, *columns: Iterable[str]) -> Table:
    table = Table("", title=title, title_justify="left", caption_justify="left")
    for column in (name for names in columns for name in names):
        table.add_column(column, justify="right")
    return table
