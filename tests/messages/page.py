"""Lists every message in docs/when-something-goes-wrong.md, from the code.

python tests/messages/page.py        writes it anew
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "when-something-goes-wrong.md"
MARK = "<!-- From here on written by tests/messages/page.py -->\n"

# What `message` words is an error of Python's own; the others are reasons in errors.
OF_PYTHON = "`TypeError`, `ValueError` and others of Python"
OF_RUN = "`resilient run` gives up"
INNER = {"MalformedError", "SchemaError", "DamageError", "ManifestError"}
# Warnings say in the same sentence what to do, and have no remedy apart.
NOT_EXACT = "Warnings: `NotExactWarning`"
LOGGED = "Warnings: log records and others"

Names = Mapping[str, Sequence[ast.expr]]


def written() -> str:
    """The page as it should be."""
    by_hand = PAGE.read_text().partition(MARK)[0]
    return by_hand + MARK + "\n".join(["\n## Every message\n", *_lines()])


def _lines() -> Iterator[str]:
    found: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    modules = {
        path.relative_to(ROOT / "resilient").parts: ast.parse(path.read_text())
        for path in sorted((ROOT / "resilient").rglob("*.py"))
    }
    shared: dict[str, Sequence[ast.expr]] = {}
    for tree in modules.values():
        shared |= _assigned(tree.body)
    for parts, tree in modules.items():
        for kind, *told in _messages(tree, shared | _assigned(tree.body)):
            of_run = kind == OF_PYTHON and parts[0] == "supervise"
            found[OF_RUN if of_run else kind].add(tuple(told))
    for kind in sorted(found, key=lambda kind: (kind in (NOT_EXACT, LOGGED), kind)):
        yield f"### {kind}\n"
        warning = kind in (NOT_EXACT, LOGGED)
        yield "| message |\n|---|" if warning else "| message | what to do |\n|---|---|"
        yield from (f"| {' | '.join(told)} |" for told in sorted(found[kind]))
        yield ""


def _messages(tree: ast.Module, constants: Names) -> Iterator[tuple[str, ...]]:
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            continue
        nodes = sorted(_own(function), key=lambda node: getattr(node, "lineno", 0))
        names, new = dict(constants), set[str]()
        for node in nodes:
            if isinstance(node, ast.Assign):
                for name in _names(node):  # several between two messages: one of them
                    before = names[name] if name in new else ()
                    names[name] = (*before, node.value)
                    new.add(name)
            elif isinstance(node, ast.Call) and (told := _told(node, names)):
                yield told
                new.clear()


def _told(call: ast.Call, names: Names) -> tuple[str, ...] | None:
    """The kind of a message and its texts, if a call makes one."""
    if not call.args:
        return None
    text = _text(call.args[0], names)
    text = text.strip() if re.search("[A-Za-z]{3}", text) else ""
    match call.func:
        case ast.Name("message"):
            kind = OF_PYTHON
        case ast.Name(name) if name.endswith("Error") and name not in INNER:
            kind = f"`{name}`"
        case ast.Name("say_once") | ast.Attribute(_, "say_once"):
            return (LOGGED, text) if text else None
        case ast.Name("warn_not_exact") | ast.Attribute(_, "_say") if call.args[1:]:
            return (NOT_EXACT, text) if text else None
        case ast.Attribute(ast.Name("logger" | "warnings"), "warning" | "warn"):
            not_exact = "NotExactWarning" in ast.dump(call)
            return (NOT_EXACT if not_exact else LOGGED, text) if text else None
        case _:
            return None
    if not (text and call.keywords):
        return None
    hints = [each.value for each in call.keywords if each.arg == "hint"]
    return kind, text, "".join(_text(hint, names) for hint in hints)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Everything in a function, but for what is in functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            yield from _own(child)


def _assigned(nodes: Sequence[ast.stmt]) -> dict[str, Sequence[ast.expr]]:
    return {
        name: (node.value,)
        for node in nodes
        if isinstance(node, ast.Assign)
        for name in _names(node)
    }


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _text(node: ast.expr, names: Names) -> str:
    """A text of Markdown, with an ellipsis for each value that is filled in."""
    match node:
        case ast.Name(name):
            others = {k: values for k, values in names.items() if k != name}
            return _one_of([_text(value, others) for value in names.get(name, ())])
        case ast.Dict():
            return _one_of([_text(value, names) for value in node.values])
        case ast.Subscript(ast.Name() as table):
            return _text(table, names)
        case ast.Call(ast.Attribute(ast.Name() as table, "get"), [_, default]):
            return _one_of([_text(table, names), _text(default, names)])
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body, names)} / {_text(node.orelse, names)}"
    if isinstance(node, ast.BinOp):
        return _text(node.left, names) + _text(node.right, names)
    if isinstance(node, ast.JoinedStr):
        parts = [_text(part, names) or "…" for part in node.values]
        return re.sub(r"…+", "…", "".join(parts))
    if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
        return _text(node.value, names) if node.value.id.isupper() else ""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return ""
    text = re.sub(r"%[a-z]", "…", node.value)
    return re.sub(r"([|<>*_\\])", r"\\\1", text).replace("\n", " ")


def _one_of(texts: Sequence[str]) -> str:
    return " / ".join(dict.fromkeys(filter(None, texts)))


if __name__ == "__main__":
    PAGE.write_text(written())
