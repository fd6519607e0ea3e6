"""The fences of a documentation page, as one program; CONTRIBUTING.md has the notes.

    python tests/support/snippets.py docs/guarantee.md 39    # the fence of that line

Nothing here imports Keras, but what runs a page.
"""

import contextlib
import importlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BACKENDS = ("tensorflow", "jax", "torch")
# Notes that say where a fence runs by itself, and what starts it there.
ALONE = {
    "own process": [],
    "2 processes": [
        *(sys.executable, "-m", "resilient", "run", "--nproc", "2"),
        *("--max-restarts", "0", "--"),
    ],
}
HOME = "/home/me"  # where pages are run, as they tell it
PRINTED, NOT_RUN = "printed", "not run:"

_BLOCK = re.compile(
    r"^<!-- test: hidden\n(?P<hidden>.*?)^-->$"
    r"|^(?P<indent> *)(?:<!-- test: (?P<note>.*?) -->\n *)?"
    r"```(?P<language>[^\s`]+)[^\n]*\n(?P<code>.*?)^(?P=indent)```$"
    r"|^ *<!-- test:(?P<stray>.*)$",
    re.DOTALL | re.MULTILINE,
)


class PageError(AssertionError):
    """A page says something that is not so."""


@dataclass(frozen=True)
class Snippet:
    """A fence, or a hidden one.

    Attributes:
        page: Where it is.
        line: Of its first line of code.
        language: What it is marked with; "python" if hidden.
        code: Its text.
        notes: What stands above it, for the test.
    """

    page: Path
    line: int
    language: str
    code: str
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return f"{os.path.relpath(self.page, ROOT)}:{self.line}"

    @property
    def not_run(self) -> str | None:
        """Why it is not run, if it is not."""
        found = [note for note in self.notes if note.startswith(NOT_RUN)]
        return found[0].removeprefix(NOT_RUN).strip() if found else None

    @property
    def backends(self) -> tuple[str, ...]:
        """For which it is."""
        named = [n for note in self.notes for n in note.split(", ") if n in BACKENDS]
        return tuple(named) or BACKENDS

    @property
    def given(self) -> list[str]:
        """Names that it takes from elsewhere."""
        return self._after("given").split(", ") if self._after("given") else []

    def runs_on(self, backend: str) -> bool:
        """Whether it is to be run, with what is installed."""
        if self.not_run is not None or backend not in self.backends:
            return False
        if not self._is_for_this_keras():
            return False
        needed, _, names = self._after("needs").partition(".")
        found = importlib.import_module(needed) if needed else None
        for name in names.split(".") if names else ():
            found = getattr(found, name, None)
        return not needed or found is not None

    def _is_for_this_keras(self) -> bool:
        """Whether it is for the release of Keras that is installed."""
        relation, _, release = self._after("keras").partition(" ")
        if not relation:
            return True
        here, there = (
            tuple(int(part) for part in version.split(".")[:2])
            for version in (_keras(), release)
        )
        return here >= there if relation == ">=" else here < there

    @property
    def raises(self) -> str:
        """Name of the exception that it ends with; "" if it ends well."""
        return self._after("raises")

    def _after(self, word: str) -> str:
        found = [n.removeprefix(word) for n in self.notes if n.startswith(f"{word} ")]
        return found[0].strip() if found else ""

    def unknown_notes(self) -> list[str]:
        """Notes that mean nothing."""
        known = [*ALONE, PRINTED, f"{NOT_RUN} .+", r"needs [\w.]+"]
        known.append(r"keras (<|>=) \d+\.\d+")
        known += [rf"{word} \w+(, \w+)*" for word in ("given", "raises")]
        backend = f"({'|'.join(BACKENDS)})"
        meant = re.compile("|".join([*known, f"{backend}(, {backend})*"]))
        return [note for note in self.notes if not meant.fullmatch(note)]


def _keras() -> str:
    """The release that is installed; a nightly has a name of its own."""
    try:
        return metadata.version("keras-nightly")
    except metadata.PackageNotFoundError:
        return metadata.version("keras")


def pages() -> list[Path]:
    """README.md, ARCHITECTURE.md and all pages of the documentation."""
    found = (ROOT / "docs").rglob("*.md")
    first = [ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    return [*first, *sorted(p for p in found if "_build" not in p.parts)]


def snippets(page: Path) -> list[Snippet]:
    """All fences of a page, in their order."""
    text = page.read_text()
    found = []
    for match in _BLOCK.finditer(text):
        if match["stray"] is not None:
            raise PageError(f"{page}: a note with no fence below:{match['stray']}")
        group = "code" if match["hidden"] is None else "hidden"
        line = text.count("\n", 0, match.start(group)) + 1
        note = match["note"] or ""
        notes = (note,) if note.startswith(NOT_RUN) else tuple(note.split("; "))
        notes = tuple(" ".join(each.split()) for each in notes if each)
        language = match["language"] or "python"
        found.append(Snippet(page, line, language, match[group], notes))
    return found


def of_docstrings(public: Any) -> list[Snippet]:
    """The code blocks that the API page shows, of what is public and of its methods."""
    methods = [m for m in vars(public).values() if inspect.isfunction(m)]
    documented = [public, *methods] if inspect.isclass(public) else [public]
    return [one for thing in documented for one in _of_docstring(thing)]


def _of_docstring(thing: Any) -> list[Snippet]:
    text = inspect.getdoc(thing) or ""
    block = r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)"
    blocks = re.findall(block, text, re.MULTILINE)
    if not blocks:
        return []
    page, line = Path(inspect.getfile(thing)), inspect.getsourcelines(thing)[1]
    return [Snippet(page, line, "python", code) for code in blocks]


def commands(snippet: Snippet) -> list[list[str]]:
    """The words of each command of a console fence; what it prints is left out."""
    joined = snippet.code.replace("\\\n", " ")
    lines = [text[2:] for text in joined.splitlines() if text.startswith("$ ")]
    words = [shlex.split(line, comments=True) for line in lines]
    found: list[list[str]] = []
    for each in words:
        found.append([])
        for word in each:
            if word == "&&":
                found.append([])
            elif found[-1] or not re.match(r"[A-Z_]+=", word):  # a variable for it
                found[-1].append(word)
    return found


def exists(words: list[str]) -> bool:
    """Whether a command does that a page shows, as far as it is ours."""
    from resilient.cli.main import make_parser

    scripts = [word for word in words if word.startswith("examples/")]
    if not all((ROOT / script).is_file() for script in scripts):
        return False
    match words:
        case ["resilient", *rest]:
            arguments, unknown = make_parser().parse_known_args(rest)
            return not unknown and exists(getattr(arguments, "command", []))
        case ["--", *rest]:
            return exists(rest)
        case ["python", script, *rest] if script in scripts:
            text = (ROOT / script).read_text()
            return all(f'"{word}"' in text for word in rest if word[:2] == "--")
        case ["nox", "-s", session, *_]:
            name = session.split("(")[0]
            return f"def {name}(" in (ROOT / "noxfile.py").read_text()
        case ["pip", "install", what] if "keras-resilient" in what:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            (extra,) = re.findall(r"\[(\w+)\]", what)
            return extra in project["optional-dependencies"]
    return True


def programs(snippet: Snippet) -> list[tuple[str, str]]:
    """The Python of a snippet, each with the line it begins at less one, as newlines.

    A diff is two: what was, and what it becomes.
    """
    above = "\n" * (snippet.line - 1)
    if snippet.language == "python":
        return [(above, textwrap.dedent(snippet.code))]
    lines = snippet.code.splitlines()
    return [
        (above, "\n".join("" if line[:1] == sign else line[1:] for line in lines))
        for sign in "+-"
    ]


def run(page: Path, backend: str) -> None:
    """Run a page's fences for one backend, in order, in the current directory.

    Raises:
        PageError: Something does not do what the page says.
    """
    namespace: dict[str, Any] = {"__name__": f"page_{page.stem}"}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for snippet in snippets(page):
            if snippet.runs_on(backend):
                _run(snippet, namespace, output)


def _run(snippet: Snippet, namespace: dict[str, Any], output: io.StringIO) -> None:
    if snippet.language == "text":
        printed = output.getvalue().replace(os.getcwd(), HOME)
        if PRINTED in snippet.notes and snippet.code not in printed:
            raise PageError(f"{snippet.where} is not what was printed:\n{printed}")
    elif snippet.language == "console":
        _run_commands(snippet)
    elif alone := set(snippet.notes) & set(ALONE):
        command = [sys.executable, __file__, str(snippet.page), str(snippet.line)]
        command = [*ALONE[alone.pop()], *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        if done.returncode:
            raise PageError(f"{snippet.where} fails:\n{done.stdout}{done.stderr}")
    elif snippet.language in ("python", "diff"):
        execute(snippet, namespace)


def execute(snippet: Snippet, namespace: dict[str, Any]) -> None:
    """Run the Python of one snippet here."""
    if snippet.given:
        from support.snippet_given import Given

        given = Given()
        namespace |= {name: getattr(given, name) for name in snippet.given}
    for above, code in programs(snippet):
        compiled = compile(above + code, str(snippet.page), "exec")
        with _ends_with(snippet):
            exec(compiled, namespace)


@contextlib.contextmanager
def _ends_with(snippet: Snippet) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if snippet.raises in [cls.__name__ for cls in type(error).__mro__]:
            return
        raise
    if snippet.raises:
        raise PageError(f"{snippet.where} ends without {snippet.raises}")


STARTS = ("run", "prove")  # what trains


def _run_commands(snippet: Snippet) -> None:
    """Run what looks at a directory; what trains is run by the tests of examples."""
    from resilient.cli import main

    for words in commands(snippet):
        if words[0] == "resilient" and words[1] not in STARTS and main.main(words[1:]):
            raise PageError(f"{snippet.where} fails: {' '.join(words)}")


if __name__ == "__main__":
    sys.path.append(str(ROOT / "tests"))  # for `support`
    chosen, at = Path(sys.argv[1]), int(sys.argv[2])
    (one,) = [snippet for snippet in snippets(chosen) if snippet.line == at]
    execute(one, {"__name__": f"page_{chosen.stem}"})
