"""The part of docs/when-something-goes-wrong.md that lists every error, from the code.

python tests/messages/page.py        writes it anew
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "when-something-goes-wrong.md"
MARK = "<!-- From here on written by tests/messages/page.py -->\n"

# What `message` words is an error of Python's own; the others are reasons in errors.
OF_PYTHON = "`TypeError`, `ValueError` and others of Python"
INNER = {"MalformedError", "SchemaError", "DamageError", "ManifestError"}


def written() -> str:
    """The page as it should be."""
    by_hand = PAGE.read_text().partition(MARK)[0]
    return by_hand + MARK + "\n".join(["\n## Every message\n", *_lines()])


def _lines() -> Iterator[str]:
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path in sorted((ROOT / "resilient").rglob("*.py")):
        for kind, problem, hint in _messages(ast.parse(path.read_text())):
            found[kind].add((problem, hint))
    for kind in sorted(found):
        yield f"### {kind}\n"
        yield "| message | what to do |\n|---|---|"
        for problem, hint in sorted(found[kind]):
            yield f"| {problem} | {hint} |"
        yield ""


def _messages(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            continue
        nodes = list(_own(function))
        names = {
            target.id: node.value
            for node in nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            name = node.func.id
            ours = name == "message" or (name.endswith("Error") and name not in INNER)
            hints = [each.value for each in node.keywords if each.arg == "hint"]
            if not ours or not node.args or not (hints or node.keywords):
                continue
            problem = _text(node.args[0], names)
            if problem:
                kind = OF_PYTHON if name == "message" else f"`{name}`"
                yield kind, problem, "".join(_text(hint, names) for hint in hints)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Everything in a function, but for what is in functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            yield from _own(child)


def _text(node: ast.expr, names: dict[str, ast.expr]) -> str:
    """A text of Markdown, with an ellipsis for each value that is filled in."""
    if isinstance(node, ast.Name) and node.id in names:
        return _text(names[node.id], {})
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body, names)} / {_text(node.orelse, names)}"
    if isinstance(node, ast.BinOp):
        return _text(node.left, names) + _text(node.right, names)
    if isinstance(node, ast.JoinedStr):
        parts = [_text(part, names) or "…" for part in node.values]
        return re.sub(r"…+", "…", "".join(parts))
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return ""
    return re.sub(r"([|<>*_\\])", r"\\\1", node.value).replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(written())
