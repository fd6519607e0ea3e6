"""Finds lines of a script that may behave differently each time it runs.

The script, and modules in its folder that it imports, are parsed; nothing is run.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

Kind = Literal["unseeded", "time", "date", "files", "attempts", "generator", "workers"]

# Matched against the end of a call's dotted name.
_CALLS: dict[Kind, set[str]] = {
    "time": {"time.time", "time.time_ns", "time.perf_counter", "time.monotonic"},
    "date": {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"},
    "files": {
        *("os.path.exists", "os.path.isfile", "os.path.isdir", "os.listdir"),
        *("glob.glob", ".exists", ".is_file", ".is_dir", ".iterdir"),
    },
    "attempts": {"os.getpid"},
}
_UNSEEDED = {
    *("os.urandom", "uuid.uuid1", "uuid.uuid4", "secrets.token_hex"),
    *("secrets.randbelow", "secrets.choice", "random.SystemRandom"),
}
# Unseeded if called without an argument.
_NEED_SEED = {"default_rng", "RandomState", "random.Random"}
_SEEDS = {"set_random_seed", "deterministic"}
_RANDOM = ("random.", "np.random.", "numpy.random.")
_MOST = 20  # modules


@dataclass(frozen=True)
class Suspect:
    """A line that may behave differently each time.

    Attributes:
        file: The script, or a module beside it.
        line: From 1.
        what: The call or function.
    """

    kind: Kind
    file: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line}: {self.what}"


def suspects(command: Sequence[str]) -> list[Suspect]:
    """Suspicious lines of the Python script in a command, if it has one."""
    return [each for file, tree in _modules(command) for each in _of(tree, file)]


def seeds(command: Sequence[str]) -> bool:
    """Whether the script sets all seeds. True if there is no script to read."""
    names = [
        ast.unparse(node.func)
        for _, tree in _modules(command)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]
    return not names or any(_ends(name, _SEEDS) for name in names)


def _modules(command: Sequence[str]) -> Iterator[tuple[Path, ast.AST]]:
    """The script, and the modules beside it that it imports, parsed."""
    left, seen = _script(command), set[Path]()
    while left and len(seen) < _MOST:
        file = left.pop()
        if file in seen:
            continue
        seen.add(file)
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        yield file, tree
        left += _beside(tree, file.parent)


def _script(command: Sequence[str]) -> list[Path]:
    """The script of ``python script.py`` or ``python -m module``, if it is there."""
    named = [Path(each) for each in command if each.endswith(".py")][:1]
    if not named:
        names = [name for option, name in pairwise(command) if option == "-m"]
        modules = [Path(*name.split(".")) for name in names]
        named = [Path(f"{each}.py") for each in modules]
        named += [each / "__main__.py" for each in modules]
    return [each for each in named if each.is_file()]


def _beside(tree: ast.AST, folder: Path) -> list[Path]:
    """The imported modules that are in the same folder."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    paths = [folder.joinpath(*name.split(".")).with_suffix(".py") for name in names]
    return [path for path in paths if path.is_file()]


def _of(tree: ast.AST, file: Path) -> Iterator[Suspect]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (kind := _kind(node)):
            yield Suspect(kind, file, node.lineno, ast.unparse(node)[:80])
        elif isinstance(node, ast.FunctionDef):
            yield from _of_function(node, file)


def _kind(call: ast.Call) -> Kind | None:
    name = ast.unparse(call.func)
    for kind, known in _CALLS.items():
        if _ends(name, known):
            return kind
    unseeded = not call.args or (
        isinstance(call.args[0], ast.Constant) and call.args[0].value is None
    )
    if _ends(name, _UNSEEDED):
        return "unseeded"
    if _ends(name, _NEED_SEED) and unseeded and not call.keywords:
        return "unseeded"
    if name.endswith("DataLoader"):
        given = {each.arg: each.value for each in call.keywords}
        workers = given.get("num_workers")
        if isinstance(workers, ast.Constant) and workers.value:
            return "workers"
    return None


def _of_function(node: ast.FunctionDef, file: Path) -> Iterator[Suspect]:
    inside = list(ast.walk(node))
    if any(isinstance(each, ast.Yield | ast.YieldFrom) for each in inside):
        yield Suspect("generator", file, node.lineno, f"def {node.name} (a generator)")
    if node.name == "__getitem__":
        for each in inside:
            if isinstance(each, ast.Call):
                name = ast.unparse(each.func)
                if name.startswith(_RANDOM):
                    what = f"{name}() in {node.name}"
                    yield Suspect("workers", file, each.lineno, what)


def _ends(name: str, known: set[str]) -> bool:
    return any(
        name == each or name.endswith(each if each.startswith(".") else f".{each}")
        for each in known
    )
