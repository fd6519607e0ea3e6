"""What runs the documentation notices what is wrong in it."""

import pytest
from support import snippets

pytestmark = pytest.mark.once


def page(folder, text):
    """A page with this text, where ~~~ is a fence."""
    path = folder / "page.md"
    path.write_text(text.replace("~~~", "```"))
    return path


def test_what_a_snippet_raises_is_found_in_its_page(tmp_path):
    wrong = page(tmp_path, "A page.\n\n~~~python\na = 1\n~~~\n~~~python\n1 / 0\n~~~\n")
    with pytest.raises(ZeroDivisionError) as raised:
        snippets.run(wrong, "jax")
    assert (str(raised.traceback[-1].path), raised.traceback[-1].lineno) == (
        str(wrong),
        6,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!-- test: raises ValueError -->\n~~~python\na = 1\n~~~", "without ValueE"),
        ("<!-- test: printed -->\n~~~text\n2\n~~~", "not what was printed"),
        (
            "<!-- test: hidden\nprint(1)\n-->\n<!-- test: printed -->\n~~~text\n2\n~~~",
            "1",
        ),
        ("<!-- test: jax -->\n\n~~~python\na = 1\n~~~", "no fence below"),
        ("<!-- test: own process -->\n~~~python\n1 / 0\n~~~", "ZeroDivisionError"),
        ("~~~console\n$ resilient ls runs/none\n~~~", "ls runs/none"),
        ("~~~diff\n+a = 1\n+assert a == 1\n-assert 0, 'was'\n~~~", "was"),
        ("~~~diff\n+a = 1\n+assert a == 2, 'is'\n-a = 2\n~~~", "is"),
    ],
)
def test_a_page_that_is_wrong_is_told_apart(tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=says):
        snippets.run(page(tmp_path, f"{text}\n"), "jax")


@pytest.mark.parametrize(("relation", "runs"), [(">=", True), ("<", False)])
def test_what_is_for_other_releases_of_keras_is_not_run(tmp_path, relation, runs):
    text = f"<!-- test: keras {relation} 3.12 -->\n~~~python\na = 1\n~~~\n"
    (one,) = snippets.snippets(page(tmp_path, text))
    assert one.unknown_notes() == []
    assert one.runs_on("jax") is runs


@pytest.mark.parametrize(
    "note", ["jax; tensor", "not run:", "raises", "2 process", "keras > 3"]
)
def test_a_note_that_means_nothing_is_told(tmp_path, note):
    (one,) = snippets.snippets(
        page(tmp_path, f"<!-- test: {note} -->\n~~~python\na = 1\n~~~\n")
    )
    assert one.unknown_notes() == [note.split("; ")[-1]]


@pytest.mark.parametrize(
    "command",
    [
        "resilient ls --unknown runs/a",
        "resilient run -- python examples/none.py",
        "resilient run --nproc 2 -- python examples/digits.py --unknown 1",
        "nox -s unknown",
        'pip install "keras-resilient[mxnet]"',
    ],
)
def test_a_command_that_does_not_exist_is_told(tmp_path, command):
    (one,) = snippets.snippets(page(tmp_path, f"~~~console\n$ {command}\n~~~\n"))
    (words,) = snippets.commands(one)
    assert not snippets.exists(words)
