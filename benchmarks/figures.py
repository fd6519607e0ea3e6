"""What the documentation shows of a benchmark: its newest report of each backend.

A report is kept in `docs/figures`, without its samples. A page has a block for each
table, which is made anew from the reports that are there:

    <!-- figures: save-sizes -->
    ...
    <!-- end of figures -->
"""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
_SAMPLES = ("samples", "limits")  # of a summary: the lists that its medians are of


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `finish` is asked for."""
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--write", action="store_true", help="the figures into the documentation"
    )


def finish(
    options: argparse.Namespace,
    benchmark: str,
    report: Mapping[str, Any],
    write: Callable[[], None],
) -> None:
    """Put a report where the options say.

    Args:
        options: Of `add_options`.
        benchmark: The name of its directory.
        report: As JSON, with `backend`: Keras's.
        write: Makes the tables of the documentation anew.
    """
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    if options.write:
        _keep(benchmark, report)
        write()


def _keep(benchmark: str, report: Mapping[str, Any]) -> None:
    """In place of the former report of this backend."""
    path = DOCS / "figures" / f"{benchmark}.{report['backend']}.json"
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(_without_samples(report), indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def kept(benchmark: str) -> dict[str, Any]:
    """The reports that are there, by backend."""
    paths = {b: DOCS / "figures" / f"{benchmark}.{b}.json" for b in BACKENDS}
    return {
        backend: json.loads(path.read_text(encoding="utf-8"))
        for backend, path in paths.items()
        if path.exists()
    }


def show(page: str, block: str, lines: Iterable[str]) -> None:
    """Replace a block of a page.

    Args:
        page: Its file in `docs`.
        block: The name of the block.
        lines: Of Markdown.

    Raises:
        ValueError: The page has no such block.
    """
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    begin, end = f"<!-- figures: {block} -->\n", "<!-- end of figures -->"
    found = re.compile(f"({re.escape(begin)}).*?({end})", re.DOTALL)
    new = "\n".join(["", *lines, "", ""])
    text, count = found.subn(lambda match: match[1] + new + match[2], text)
    if count != 1:
        raise ValueError(f"{page} has {count} blocks {block!r}")
    path.write_text(text, encoding="utf-8")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    made = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(row) + " |" for row in made]


def ratio(summary: Mapping[str, Any]) -> str:
    """The median of paired ratios, with the quartiles."""
    low, middle, high = summary["quartiles"]
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _without_samples(found: Any) -> Any:
    if isinstance(found, Mapping):
        kept = {
            key: value
            for key, value in found.items()
            if not (key in _SAMPLES and isinstance(value, list))
        }
        return {key: _without_samples(value) for key, value in kept.items()}
    if isinstance(found, list):
        return [_without_samples(each) for each in found]
    return round(found, 6) if isinstance(found, float) else found
