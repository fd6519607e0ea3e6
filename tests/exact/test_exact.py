"""Whatever is killed anywhere, and started again, ends as if it had been left alone."""

import ast
from pathlib import Path

import resilient

from .record import Record, differences
from .runner import Run, Servers
from .table import Row

HERE = Path(__file__).parent


def test_killed_and_started_again(
    backend: str, row: Row, servers: Servers, tmp_path: Path
):
    """The bytes of Keras alone, of a run that was left alone, and of one that was not.

    All that is left is compared, and nothing is trained twice after the last kill.
    """

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


def assert_same(expected: Record, actual: Record, about: str) -> None:
    lines = differences(expected, actual)
    assert not lines, "\n  ".join([f"not the same bytes: {about}", *lines])


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
                assert not HERE.parent.joinpath(top).exists(), f"{file}: {name}"
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names |= {node.attr} if node.value.id == "resilient" else set()
    assert names - {""} <= set(resilient.__all__), names
