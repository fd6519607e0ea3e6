"""What the documentation shows is so: its snippets run, its commands exist."""

import os
import re
import shutil
import subprocess
import tomllib

import pytest
import snippets
from snippets import ROOT, Snippet

from resilient import cli, clouds

PAGES = {str(page.relative_to(ROOT)): page for page in snippets.pages()}
SNIPPETS = [one for page in PAGES.values() for one in snippets.snippets(page)]
CONSOLES = [one for one in SNIPPETS if one.language == "console"]
RUN = ("python", "diff", "console")
# Shown, not run. MyST's own directives begin with a brace.
SHOWN = ("text", "bash")

# Pages with something to run on the backend under test.
RUNNING = sorted(
    {
        str(one.page.relative_to(ROOT))
        for one in SNIPPETS
        if one.language in RUN and os.environ["KERAS_BACKEND"] in one.backends
    }
)

# Why a snippet is not run, and how many there are of them on a page.
NOT_RUN = {
    "docs/coming-from/estimator-runconfig.md": {
        "tf.estimator is not in TensorFlow since 2.16": 2,
    },
    "docs/coming-from/pytorch.md": {
        "Lightning is not installed for the tests": 1,
    },
    "docs/coming-from/tf-checkpoint.md": {
        "WorkerTrainingState is in tf.keras 2 only, and private there": 1,
    },
}


def no_cloud(*_):
    raise OSError("There is no metadata server here.")


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")  # Keras's own
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # the same, for tf.data
@pytest.mark.filterwarnings("ignore:Sharding info not provided")  # Orbax's
@pytest.mark.parametrize("name", RUNNING)
def test_the_snippets_of_a_page_run(
    name, backend, child_environment, tmp_path, monkeypatch
):
    """In their order, as one program, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clouds, "_ask", no_cloud)
    for key, value in child_environment.items():
        monkeypatch.setenv(key, value)
    snippets.run(PAGES[name], backend)


@pytest.mark.once
def test_every_snippet_is_run_or_says_why_not():
    """A new reason has to be written here, too."""
    found: dict[str, dict[str, int]] = {}
    for one in SNIPPETS:
        assert one.language in (*RUN, *SHOWN) or one.language[0] == "{", one.where
        assert not one.unknown_notes(), one.where
        if one.not_run is not None:
            of_page = found.setdefault(str(one.page.relative_to(ROOT)), {})
            of_page[one.not_run] = of_page.get(one.not_run, 0) + 1
    assert found == NOT_RUN


@pytest.mark.once
@pytest.mark.parametrize("snippet", CONSOLES, ids=lambda one: one.where)
def test_the_commands_of_a_page_exist(snippet: Snippet):
    """With the options that they are given, and the files."""
    for words in snippets.commands(snippet):
        assert exists(words), words


def exists(words: list[str]) -> bool:
    """Whether a command does, as far as it is ours."""
    scripts = [word for word in words if word.startswith("examples/")]
    if not all((ROOT / script).is_file() for script in scripts):
        return False
    match words:
        case ["resilient", *rest]:
            arguments, unknown = cli._parser().parse_known_args(rest)
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


@pytest.mark.once
@pytest.mark.parametrize("name", PAGES)
def test_the_files_that_a_page_names_exist(name):
    text = PAGES[name].read_text()
    folders = "benchmarks|examples|resilient|tests"
    for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.once
def test_bash_finds_no_error_in_what_is_for_it():
    bash = shutil.which("bash") or "/bin/bash"
    for one in SNIPPETS:
        if one.language == "bash":
            done = subprocess.run(
                [bash, "-n"], input=one.code, capture_output=True, text=True
            )
            assert (done.returncode, done.stderr) == (0, ""), one.where
