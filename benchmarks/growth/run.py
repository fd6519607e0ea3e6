"""What grows faster than its work, and beside it the peers?

    KERAS_BACKEND=torch python benchmarks/growth/run.py [--only events] [--write]

One quantity grows at a time: variables, megabytes of state, checkpoints in the
directory, lines of events.jsonl, history, callbacks, rollbacks. At each size a new
process measures what a boundary between two batches costs, a save, `resilient ls`, a
resume or a start, and how much memory the process took at most. The exponent between
two sizes says how a cost grows: 0 does not, 1 as the quantity does, more is too much.
"""

import argparse
import math
import os
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(1, str(Path(__file__).parents[1]))
sys.path.insert(2, str(Path(__file__).parents[1] / "save"))
import figures
import machine
from names import MEMORY, PEERS, SUBJECTS

NAME = "growth"
_NAMES = (
    *("variables", "megabytes", "checkpoints", "events", "history", "callbacks"),
    "rollbacks",
)
_PAGES = {"what-grows.md": _NAMES[2:], "what-grows-with-a-model.md": _NAMES[:2]}
_WITHOUT_BACKEND = ("events", "history", "callbacks", "rollbacks")
_LEAST = 1e-4  # seconds; what takes less is noise, and has no exponent


def at(name: str, size: int, only: list[str] | None) -> dict[str, Any]:
    """Measure one quantity at one size, in this process."""
    import quantities
    import saves

    warnings.simplefilter("ignore")
    if only is not None:
        saves.MEASURED = only
    with tempfile.TemporaryDirectory() as directory:
        return quantities.measure(name, size, directory)


def sizes_of(name: str) -> list[int]:
    """The sizes of a quantity."""
    import quantities

    return list(quantities.QUANTITIES[name][1])


def exponents(sizes: list[int], values: list[float | None]) -> list[float | None]:
    """How a cost grows from each size to the next."""
    return [
        math.log(new / old) / math.log(big / small)
        if new and old and new > _LEAST
        else None
        for (small, big), (old, new) in zip(
            pairwise(sizes), pairwise(values), strict=True
        )
    ]


def grown(name: str, options: argparse.Namespace, before: dict[str, Any]) -> Any:
    """Measure a quantity at its sizes, each in a new process.

    Args:
        name: The quantity.
        options: Which sizes and subjects; all others are kept from before.
        before: What this returned before.
    """
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        sizes = process.submit(sizes_of, name).result()
    found: dict[int, dict[str, Any]] = {}
    for size in sizes:
        measured = options.sizes is None or size in options.sizes
        if size in before.get("sizes", ()) and (options.subjects or not measured):
            number = before["sizes"].index(size)
            found[size] = {
                what: {
                    "median": cost["values"][number],
                    "quartiles": cost["quartiles"][number],
                }
                for what, cost in before["costs"].items()
            }
        if measured:
            with ProcessPoolExecutor(1, mp_context=context) as process:
                new = process.submit(at, name, size, options.subjects).result()
            found[size] = found.get(size, {}) | new
    costs = {}
    nothing = {"median": None, "quartiles": None}
    for what in dict.fromkeys(what for each in found.values() for what in each):
        cells = [each.get(what, nothing) for each in found.values()]
        values = [each["median"] for each in cells]
        grows = exponents([*found], values)
        quartiles = [each["quartiles"] for each in cells]
        costs[what] = {"values": values, "quartiles": quartiles, "exponents": grows}
    return {"sizes": [*found], "costs": costs}


def table(name: str, found: dict[str, Any]) -> Table:
    """Milliseconds by size, each with the exponent from the size before it."""
    shown = Table(title=f"{name}: milliseconds (exponent since the size before)")
    for head in ("", *(f"{size:,}" for size in found["sizes"])):
        shown.add_column(head, justify="right" if head else "left")
    for what, cost in found["costs"].items():
        scale = 1 if what == MEMORY else 1e3
        cells = [_number(value, scale, ".3g") for value in cost["values"]]
        grows = [None, *cost["exponents"]]
        cells = [
            cell if grow is None else f"{cell} ({grow:.2f})"
            for cell, grow in zip(cells, grows, strict=True)
        ]
        shown.add_row(what, *cells)
    return shown


def write() -> None:
    """Make the tables of the documentation anew."""
    for page, quantities in _PAGES.items():
        made = []
        for backend, report in figures.kept(NAME).items():
            facts, name = report["machine"], figures.BACKENDS[backend]
            about = f"{facts['cores']} cores of {facts['cpu']}, {facts['file_system']}"
            made += [f"## {name}", "", f"Milliseconds, medians; {about}.", ""]
            for quantity in filter(report["quantities"].get, quantities):
                if backend == "torch" or quantity not in _WITHOUT_BACKEND:
                    found = report["quantities"][quantity]
                    head = [quantity, *(f"{x:,}" for x in found["sizes"]), "exponent"]
                    shown = _best(found["costs"]).items()
                    rows = [_cells(*x) for x in shown if _is_shown(*x)]
                    made += [*figures.table(head, rows), ""]
        figures.show(page, NAME, made[:-1])


def _best(costs: dict[str, Any]) -> dict[str, Any]:
    """Without the peers that take longer than another for the largest size."""
    least: dict[str, tuple[float, str]] = {}
    for name, cost in costs.items():
        who, _, what = name.rpartition(": ")
        if who in PEERS and cost["values"][-1] is not None:
            found = cost["values"][-1], name
            least[what] = min(found, least.get(what, found))
    best = {name for _, name in least.values()}
    return {
        name: cost
        for name, cost in costs.items()
        if name.rpartition(": ")[0] not in PEERS or name in best
    }


def _is_shown(what: str, cost: dict[str, Any]) -> bool:
    """Whether it says more than the others: not memory that stays the same."""
    if what == MEMORY:
        values = [value for value in cost["values"] if value is not None]
        return max(values) > 1.1 * min(values)
    # Peers write while training waits.
    return not what.endswith(": stall") or what.startswith("resilient:")


def _cells(what: str, cost: dict[str, Any]) -> list[str]:
    scale = 1 if what == MEMORY else 1e3
    large = any(value and value * scale >= 1000 for value in cost["values"])
    form = ",.0f" if large else ",.3g"
    cells = [_number(value, scale, form) for value in cost["values"]]
    last = cost["exponents"][-1] if cost["exponents"] else None
    name = f"**{what}**" if what.startswith("resilient:") else what
    return [name, *cells, "" if last is None else f"{last:.2f}"]


def _number(value: float | None, scale: float, form: str) -> str:
    return "" if value is None else format(value * scale, form)


def plot(report: dict[str, Any], path: Path) -> None:
    """Draw each quantity, both axes logarithmic; needs the group `pictures`."""
    import altair as alt

    rows = [
        {"quantity": name, "size": size, "what": what, "ms": 1e3 * value}
        for name, found in report["quantities"].items()
        for what, cost in found["costs"].items()
        if what != MEMORY
        for size, value in zip(found["sizes"], cost["values"], strict=True)
        if value is not None
    ]
    charts = [
        alt.Chart(alt.Data(values=[row for row in rows if row["quantity"] == name]))
        .mark_line(point=True)
        .encode(
            x=alt.X("size:Q", title=name).scale(type="log"),
            y=alt.Y("ms:Q", title="ms").scale(type="log"),
            color=alt.Color("what:N", title=None),
        )
        .properties(width=320, height=200)
        for name in report["quantities"]
    ]
    alt.concat(*charts, columns=2).resolve_scale(color="independent").save(path)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=_NAMES, default=[*_NAMES])
    parser.add_argument(
        "--sizes", nargs="*", type=int, help="only these; others are kept from before"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument(
        "--subjects", nargs="*", choices=SUBJECTS, help="the same of who saves"
    )
    figures.add_options(parser)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    facts = machine.facts(tempfile.gettempdir())
    report: dict[str, Any] = {"backend": backend, "machine": facts}
    # What is not measured now is kept from before.
    report["quantities"] = figures.kept(NAME).get(backend, report).get("quantities", {})
    console = Console(width=120)
    console.print(machine.words(report["machine"]))
    for name in options.only:
        before = report["quantities"].get(name, {})
        found = grown(name, options, before)
        report["quantities"][name] = found
        console.print(table(name, found))
    figures.finish(options, NAME, report, write)
    if options.plot:
        plot(report, options.plot)


if __name__ == "__main__":
    main()
