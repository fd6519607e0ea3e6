"""Faults of others, shown without us: when one is gone, what we do about it may go.

The last lines of a program's docstring say where it runs: ``Backends:``, ``Needs:``
(names that have to be there), ``Shows with:`` (versions; all, if it says nothing).
"""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support import BACKENDS, ROOT, SUPPORT

SERVER = SUPPORT / "upstream_server.py"
GONE = 1  # the status of a program whose fault does not show


@dataclass(frozen=True)
class Program:
    """One of ``upstream/``.

    Attributes:
        path: The program.
        backends: Which it runs on.
        needs: Names, with those of their modules in front, that have to be there.
        shows_with: Requirements on versions; where one is not met the fault is gone.
    """

    path: Path
    backends: tuple[str, ...]
    needs: tuple[str, ...]
    shows_with: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> "Program":
        docstring = path.read_text().split('"""')[1]

        def said(word: str) -> tuple[str, ...]:
            found = re.search(rf"^{word}: (.+)$", docstring, re.MULTILINE)
            return tuple(found[1].split(", ")) if found else ()

        return cls(path, said("Backends"), said("Needs"), said("Shows with"))

    @property
    def libraries(self) -> list[str]:
        """What it needs beside Keras and its backend."""
        return [name for name in self.needs if not name.startswith("keras.")]

    def missing(self) -> list[str]:
        return [name for name in self.needs if not _exists(name)]

    def is_to_show(self) -> bool:
        return all(map(_is_met, self.shows_with))


def _exists(name: str) -> bool:
    module, *names = name.split(".")
    if module != "keras":
        return find_spec(module) is not None and find_spec(name) is not None
    found = importlib.import_module(module)
    for each in names:
        found = getattr(found, each, None)
    return found is not None


def _is_met(text: str) -> bool:
    wanted = Requirement(text)
    version = importlib.import_module(wanted.name).__version__
    return wanted.specifier.contains(version, prereleases=True)


PROGRAMS = [Program.of(path) for path in sorted((ROOT / "upstream").glob("*.py"))]
HERE = [
    pytest.param(
        program,
        id=program.path.stem,
        marks=[
            pytest.mark.spread(over=program.backends),
            *([pytest.mark.sources] if program.libraries else ()),
        ],
    )
    for program in PROGRAMS
    if os.environ["KERAS_BACKEND"] in program.backends
]


@pytest.fixture(scope="session")
def server(
    child_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[str]]:
    """Runs programs; torch is there from the start, if it is there at all."""
    with subprocess.Popen(
        [sys.executable, SERVER, *filter(_exists, ["torch"])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=child_environment | {"TMPDIR": str(tmp_path_factory.mktemp("upstream"))},
    ) as process:
        yield process
        # Not by the end of its stdin: processes that tests forked may hold it open.
        process.kill()


def run(program: Program, server: subprocess.Popen[str]) -> tuple[int, str]:
    """The status and the output of a program."""
    assert server.stdin is not None
    assert server.stdout is not None
    print(program.path, file=server.stdin, flush=True)
    status, printed = json.loads(server.stdout.readline())
    return status, printed


@pytest.mark.parametrize("program", HERE)
def test_a_fault_still_shows(program: Program, server: subprocess.Popen[str]):
    """Or is gone with the versions that it is said to be gone with."""
    if missing := program.missing():
        pytest.skip(f"needs {', '.join(missing)}")
    name, (status, printed) = program.path.name, run(program, server)
    assert status in (0, GONE), f"{name} failed with status {status}:\n{printed}"
    last = printed.strip().splitlines()[-1]
    assert last.startswith("gone: " if status == GONE else "shown: "), printed
    if program.is_to_show():
        advice = "docs/bugs-in-*.md says what we do about it, which may go now"
        assert status == 0, f"{name}: {last}\n{advice} (see CONTRIBUTING.md)"
    else:
        advice = f'"Shows with: {", ".join(program.shows_with)}" is not true'
        assert status == GONE, f"{name}: {last}\n{advice}"


@pytest.mark.once
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.path.stem)
def test_a_program_says_where_it_runs_and_the_documentation_names_it(program: Program):
    """Once, in a table, with the versions, and a place of ours that deals with it."""
    assert program.backends, f"{program.path} has no line `Backends: ...`"
    assert set(program.backends) <= set(BACKENDS)
    pages = "".join(p.read_text() for p in (ROOT / "docs").glob("bugs-in-*.md"))
    (row,) = re.findall(rf"^\| `upstream/{program.path.name}` .*$", pages, re.MULTILINE)
    assert re.search(r"`resilient/|\]\(", row), row
    before = re.findall(r"before 3\.\d+", row)
    wanted = [w.replace("keras<", "before ") for w in program.shows_with]
    assert before == [w for w in wanted if w.startswith("before ")], row
