"""What counts as a line of code, and what is above a budget."""

import pytest
from support.budgets import Size, code_lines, excesses, sizes

pytestmark = pytest.mark.once

MODULE = '''"""A docstring,

of a module."""

import os  # counts


# Does not count.
def name():
    """Neither does this."""
    text = """but a text

    does"""
    return (
        os.name + text
    )
'''


def test_code_lines_are_no_blanks_comments_or_docstrings():
    assert code_lines(MODULE) == 7


def test_a_package_above_its_lines_or_files_is_named(tmp_path):
    folder = tmp_path / "package" / "part"
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.py").write_text(MODULE)
    found = sizes(tmp_path / "package")
    assert found == {"part": Size(14, 2)}
    assert excesses(found, {"part": Size(14, 2)}) == []
    for least in (Size(13, 2), Size(14, 1)):
        assert excesses(found, {"part": least}) == [
            f"part: 14 lines in 2 files, of {least.lines} in {least.files}"
        ]
    assert excesses(found, {}) == ["part: 14 lines in 2 files, of 0 in 0"]
