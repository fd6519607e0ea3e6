"""What the documentation shows is so: its snippets run, its commands exist."""

import os
import re
import shutil
import subprocess
import tomllib

import options_page
import pytest
from support import BACKENDS, snippets
from support.snippets import ROOT, Snippet

import resilient
from resilient import clouds

PAGES = {str(page.relative_to(ROOT)): page for page in snippets.pages()}
SNIPPETS = [one for page in PAGES.values() for one in snippets.snippets(page)]
CONSOLES = [one for one in SNIPPETS if one.language == "console"]
EXAMPLES = [
    example
    for name in resilient.__all__
    if callable(public := getattr(resilient, name))
    for example in snippets.of_docstrings(public)
]
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


def of_page(name: str) -> object:
    """A page is spread over the backends, if it shows each of them the same."""
    of_it = [s for s in SNIPPETS if s.page == PAGES[name] and s.language in RUN]
    alike = all(set(s.backends) == set(BACKENDS) for s in of_it)
    return pytest.param(name, marks=pytest.mark.spread if alike else ())


# Why a snippet is not run, and how many there are of them on a page.
NOT_RUN = {
    "docs/coming-from/estimator-runconfig.md": {
        "tf.estimator is not in TensorFlow since 2.16": 2,
    },
    "docs/coming-from/tf-checkpoint.md": {
        "WorkerTrainingState is in tf.keras 2 only, and private there": 1,
    },
}


def no_cloud(*_, **__):
    raise OSError("There is no metadata server here.")


@pytest.mark.waits
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")  # Keras's own
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # the same, for tf.data
@pytest.mark.filterwarnings("ignore:Sharding info not provided")  # Orbax's
@pytest.mark.filterwarnings(r"ignore::UserWarning:lightning\..*")  # Lightning's advice
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.`")  # and its own
@pytest.mark.parametrize("name", [*map(of_page, RUNNING)])
def test_the_snippets_of_a_page_run(
    name, backend, child_environment, tmp_path, monkeypatch
):
    """In their order, as one program, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clouds, "HTTPConnection", no_cloud)
    for key, value in child_environment.items():
        monkeypatch.setenv(key, value)
    snippets.run(PAGES[name], backend)


@pytest.mark.waits
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")  # Keras's own
def test_the_examples_of_docstrings_run(tmp_path, monkeypatch):
    """Those of the public names; what they take for granted is the reader's."""
    monkeypatch.chdir(tmp_path)
    from support.snippet_given import Given

    for example in EXAMPLES:
        snippets.execute(example, Given().of_docstrings())
    assert len(EXAMPLES) == 4


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
    found = snippets.commands(snippet)
    assert found
    for words in found:
        assert snippets.exists(words), words


@pytest.mark.once
@pytest.mark.parametrize("name", PAGES)
def test_the_files_that_a_page_names_exist(name):
    text = PAGES[name].read_text()
    folders = "benchmarks|examples|resilient|tests|upstream"
    named = re.findall(rf"`((?:{folders})/[\w./-]+)`", text)
    linked = re.findall(r"\]\(([\w./-]+)[#)]", text)
    assert named or linked or "/troubleshooting/" in name
    for path in named:
        assert (ROOT / path).exists(), path
    for path in linked:
        assert (PAGES[name].parent / path).exists(), path


@pytest.mark.once
@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("docs/")])
def test_a_page_is_no_longer_than_a_reader_has_patience_for(name):
    """What takes more words is two pages, or says something twice."""
    assert len(PAGES[name].read_text().split()) <= 1200


@pytest.mark.once
def test_the_table_of_options_is_what_the_code_says():
    """After a change, run: python tests/docs/options_page.py."""
    assert options_page.PAGE.read_text() == options_page.page()


@pytest.mark.once
def test_the_readme_links_to_what_exists_from_wherever_it_is_shown():
    """A package index shows it too, where a relative link leads nowhere."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = project["urls"]["Source"] + "/blob/main/"
    links = re.findall(r"\]\(([^)]+)\)", PAGES["README.md"].read_text())
    assert links
    for link in links:
        assert link.startswith("https://"), link
        if link.startswith(files):
            assert (ROOT / link.removeprefix(files).split("#")[0]).is_file(), link


@pytest.mark.once
def test_bash_finds_no_error_in_what_is_for_it():
    bash = shutil.which("bash") or "/bin/bash"
    scripts = [one for one in SNIPPETS if one.language == "bash"]
    assert scripts
    for one in scripts:
        done = subprocess.run(
            [bash, "-n"], input=one.code, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, ""), one.where
