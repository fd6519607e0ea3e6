"""Writes the table of options in docs/options.md, from the dataclasses that have them.

python tests/docs/options_page.py        writes the table anew
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from resilient.training.fit.api import OfResilientFit
from resilient.training.options import LoopOptions
from resilient.training.shown import described

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
MARK = "<!-- From here on written by tests/docs/options_page.py -->\n"


def page() -> str:
    """The page as it should be."""
    by_hand = PAGE.read_text().partition(MARK)[0]
    return by_hand + MARK + "\n" + "\n".join(_rows()) + "\n"


def _rows() -> Iterator[str]:
    yield "| option | default | of | |\n|---|---|---|---|"
    of_fit, of_loop = described(OfResilientFit), described(LoopOptions)
    shown = {
        **inspect.signature(LoopOptions).parameters,
        **inspect.signature(OfResilientFit).parameters,
    }
    both = {"checkpoint_dir", *of_fit.keys() & of_loop.keys()}
    for name, text in {**of_fit, **of_loop, **of_fit}.items():
        of = "`fit`, `Run`" if name in both else "`fit`" if name in of_fit else "`Run`"
        first = re.split(r"(?<=\.) (?=[A-Z`(])", " ".join(text.split()))[0]
        cell = first.replace("``", "`").replace("|", r"\|")
        yield f"| `{name}` | {_default(shown[name])} | {of} | {cell} |"


def _default(option: inspect.Parameter) -> str:
    if option.default is option.empty:
        return ""
    if type(option.default).__name__ == "Preemption":
        return "`Preemption()`"
    return f"`{option.default!r}`".replace("'", '"')


if __name__ == "__main__":
    PAGE.write_text(page())
