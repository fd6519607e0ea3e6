"""Counts the code lines of each package, and compares them with their budgets.

``nox -s lint`` runs this at the root of the project. A code line is one that is neither
blank, nor a comment, nor part of a docstring. The budgets are in ``pyproject.toml``: a
commit that raises one says which sentence of the README it buys.
"""

import ast
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path("resilient")
APART = "torch_dp"  # goes once Keras 3.16 is released
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


class Size(NamedTuple):
    """The size of a package, or what it may have."""

    lines: int
    files: int


def code_lines(text: str) -> int:
    """How many lines of a module hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for docstring in _docstrings(ast.parse(text)):
        lines -= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    every = text.splitlines()
    return sum(bool(every[number - 1].strip()) for number in lines)


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def sizes(package: Path) -> dict[str, Size]:
    """The size of each part of a package: a folder, or the modules beside them."""
    found: dict[str, Size] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        name = parts[0] if len(parts) > 1 else "root"
        name = APART if APART in parts else name
        before = found.get(name, Size(0, 0))
        lines = code_lines(path.read_text())
        found[name] = Size(before.lines + lines, before.files + 1)
    return found


def excesses(found: dict[str, Size], budgets: dict[str, Size]) -> list[str]:
    """Every part that has more than its budget, in words."""
    none = Size(0, 0)
    return [
        f"{name}: {size.lines:,} lines in {size.files} files, "
        f"of {budgets.get(name, none).lines:,} in {budgets.get(name, none).files}"
        for name, size in found.items()
        if size.lines > budgets.get(name, none).lines
        or size.files > budgets.get(name, none).files
    ]


def main() -> int:
    """Print a table; return 1 if something is above its budget."""
    table = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["budgets"]
    budgets = {name: Size(*pair) for name, pair in table.items()}
    found = sizes(PACKAGE)
    found["in all"] = Size(*map(sum, zip(*found.values(), strict=True)))
    for name, (lines, files) in sorted(found.items(), key=lambda each: each[1]):
        most = budgets.get(name, Size(0, 0))
        print(f"{lines:7,} of {most.lines:6,} {files:4} of {most.files:3}  {name}")
    above = excesses(found, budgets)
    for each in above:
        print(f"Above its budget: {each}")
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main())
