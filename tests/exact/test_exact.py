"""Whatever is killed anywhere, and started again, ends as if it had been left alone."""

import ast
import sys
from pathlib import Path

import resilient

from .runner import Run, Servers
from .table import Row

HERE = Path(__file__).parent


def test_killed_and_started_again(
    backend: str, row: Row, servers: Servers, tmp_path: Path
):
    """Keras alone, a run that was left alone, and one that was not: the same bytes."""

    def run(name: str) -> Run:
        return Run(servers, backend, row, tmp_path / name)

    alone = run("alone")
    expected = [end["left"] for end in alone()]
    if backend in row.plain:
        (plain,) = run("plain")(plain=True)
        assert_same(plain["left"], expected[0], "left alone, and by Keras alone")
    if row.again:
        (end,) = alone()
        assert end["trained"] == []
        assert_same(expected[0], end["left"], "finished, and run once more")
    killed = run("killed")
    for kill in row.chain:
        if kill == "damage":
            killed.damage()
        else:
            killed(kill)
    for one, end in zip(expected, killed(), strict=True):
        assert_same(one, end["left"], "left alone, and killed")


def assert_same(expected: dict[str, str], actual: dict[str, str], about: str) -> None:
    """Fail with what differs, by name; pass if and only if all bytes are equal."""
    lines = []
    for path in sorted(expected.keys() | actual.keys()):
        one, other = expected.get(path, "nothing"), actual.get(path, "nothing")
        if one != other:
            lines.append(f"{path}: expected {one[:90]}, got {other[:90]}")
    if lines:
        head = f"not the same bytes: {about}: {len(lines)} differ"
        raise AssertionError("\n  ".join([head, *lines[:12]]))


OURS = {"exact": HERE, "support": HERE.parent / "support"}


def imports(file: Path) -> set[str]:
    """Modules that a file imports, with the names it takes from them."""
    package = ".".join(file.relative_to(HERE.parent).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = ".".join(filter(None, [package * bool(node.level), node.module]))
            found |= {f"{module}.{name.name}" for name in node.names}
    return found


def test_it_knows_nothing_of_resilient_but_its_public_names():
    """Else a suite that a change is held against would change with it."""
    files, known = list(HERE.glob("*.py")), set()
    names = set()
    while files:
        file = files.pop()
        known.add(file)
        for name in imports(file):
            top, *rest = name.split(".")
            if top == "resilient":
                names.add(".".join(rest))
            elif top in OURS:
                imported = OURS[top].joinpath(*rest[:1]).with_suffix(".py")
                files += [imported] * (imported.exists() and imported not in known)
            else:
                ours = HERE.parent.joinpath(top).exists()
                assert not ours or top in sys.stdlib_module_names, f"{file}: {name}"
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names |= {node.attr} if node.value.id == "resilient" else set()
    public = {"", "__all__", *resilient.__all__}
    assert names <= public, names - public
