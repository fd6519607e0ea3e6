"""Shortens the signatures on the API page to what a caller needs to know.

Types lose their modules, literals their ``Literal[...]``, and callables their argument
types, which the description gives. Errors lose their arguments: only we raise them.
"""

import re
from typing import Any

from sphinx.application import Sphinx

SHORTER = (
    (r"<Signals\.(\w+): \d+>", r"\1"),
    (r"Preemption\(signals=.*?, notices=\(\)\)", "Preemption()"),
    (r"~?\b(?!keras\.Model)(?:[a-z_]+\.)+(?=[A-Z])", ""),  # collections.abc.Mapping
    (r"Callable\[\[.*?\], (?:str \| )?None\]", "Callable"),
    (r"PathLike\[str\]", "PathLike"),
    (r": Any\b(?: = None)?", lambda any_: "=None" if "None" in any_[0] else ""),
)


def literals(found: re.Match[str]) -> str:
    """The values of a ``Literal``, as alternatives."""
    return " | ".join(found[1].split(", "))


def shortened(text: str | None) -> str | None:
    """A signature or return type, as a person would write it."""
    if text is None:
        return None
    for long, short in SHORTER:
        text = re.sub(long, short, text)
    return re.sub(r"Literal\[(.*?)\]", literals, text)


def shorten(  # noqa: PLR0917  # as Sphinx calls it
    app: Sphinx,
    kind: str,
    name: str,
    documented: object,
    options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None] | None:
    """Shorten a signature that Sphinx is about to show."""
    if not signature:
        return None
    if kind == "exception" and name != "resilient.errors.ResilientError":
        return "", None
    return shortened(signature), shortened(returned)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True}
