"""A script that is killed, changed and run again is refused, warned of or goes on.

Nothing else: no changed argument of ``compile``, of a layer or of a callback goes on
without a word, unless training may go on with it exactly as with the former one.
"""

import json
import subprocess
import sys
from inspect import signature

import keras
import pytest
from support.compiling import compile_once
from support.forking import environment

from .changed import attempts, callbacks, settings
from .changed.settings import LOGGED, REFUSED, WARNED

pytestmark = [
    pytest.mark.spread,
    pytest.mark.timeout(900),  # of the fixture, where others use the machine as well
    pytest.mark.xdist_group("changed scripts"),
]


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """What the tests that run ask for, by name: see ``attempts``."""
    home = tmp_path_factory.mktemp("changed")
    names = {
        name: None
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
        for name in asked(item.callspec.params["name"])
    }
    bases = [attempts.scripts_of(name)[0] for name in names]
    processes = []
    for what, asks in (("killed", [*dict.fromkeys(bases)]), ("resumed", [*names])):
        order = json.dumps({"home": str(home), "names": asks})
        # Another seed of hashes than the first process has.
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "kill.changed.attempts", what, order],
                env=environment() | compile_once(home / f"compiled {what}"),
            )
        )
    try:
        assert [each.wait(800) for each in processes] == [0, 0]
    finally:
        for each in processes:
            each.kill()
            each.wait()
    return json.loads((home / "found.json").read_text())


def left(got):
    """What it left, that was killed before, and now went on to its end."""
    assert got["ended"][0] == "-9", got["ended"][1]
    assert got["error"] is None, got["error"][2]
    return got["left"]


def asked(name):
    """The names of what a test of this name looks at."""
    if name in settings.CHANGES:
        return [name, attempts.UNCHANGED + settings.CHANGES[name][0]]
    if name in attempts.BASES:
        return [attempts.UNCHANGED + name]
    name = name.partition(".")[0]
    return [attempts.UNCHANGED + name, name, attempts.UNINTERRUPTED + name]


@pytest.mark.parametrize("name", settings.CHANGES)
def test_a_changed_setting_is_not_silent(name, found):
    base, _, expected = settings.CHANGES[name]
    got, unchanged = found[name], found[attempts.UNCHANGED + base]
    rates = [line for line in got["log"] if "learning rate" in line]
    assert len(rates) == (expected == LOGGED)
    if expected == REFUSED:
        assert got["error"][0] == "CheckpointMismatchError", got
        assert "Nothing" in got["error"][1]
        assert not got["warnings"]
        return
    if expected == WARNED:
        ((category, text),) = got["warnings"]
        assert category == "NotExactWarning"
        assert "these settings changed" in text
        assert len(text.splitlines()) == 2
    else:
        assert not got["warnings"]
    same = left(got)["values"] == left(unchanged)["values"]
    assert same == (expected != WARNED or name in settings.HARMLESS)


@pytest.mark.parametrize("name", ["averages"])
def test_a_changed_setting_is_named_beside_the_variables_that_it_adds(name, found):
    assert "optimizer.use_ema: the checkpoint has False" in found[name]["error"][2]


@pytest.mark.parametrize("name", attempts.BASES)
def test_what_did_not_change_goes_on_in_silence(name, found):
    got = found[attempts.UNCHANGED + name]
    assert left(got)
    assert not got["log"]
    assert not got["warnings"]


@pytest.mark.parametrize("name", callbacks.ROWS)
def test_settings_of_callbacks_may_change(name, found):
    """The script's value wins: as in a run that had it from the beginning."""
    cls = name.partition(".")[0]
    got, expected = found[cls], found[attempts.UNINTERRUPTED + cls]
    ours, theirs = (of_callback(each, name) for each in (got, expected))
    for made in callbacks.MADE.get(name, ()):
        del ours[made], theirs[made]
    assert ours == theirs
    assert got["log"] == expected["log"]
    said = unique(got["warnings"])
    if cls == "TensorBoard elsewhere":
        ((category, text),) = said
        assert category == "NotExactWarning"
        assert "TensorBoard may show missing or duplicate steps" in text
    else:
        assert said == unique(expected["warnings"])


def of_callback(got, name):
    """What is left of the callback of a row, and the files that it wrote in the end."""
    cls, argument = name.split(".")
    rows = [row for row in callbacks.ROWS if row.startswith(f"{cls}.")]
    _, value = callbacks.CLASSES[cls].changes[argument]
    known = {str(value), argument}
    files = {
        path: content
        for path, content in left(got)["files"].items()
        if known & {path, path.partition("/")[0], path.partition(".")[0]}
    }
    return left(got)["callbacks"][rows.index(name)] | {"files": files}


def unique(warnings):
    return {tuple(each) for each in warnings}


def test_every_argument_of_a_callback_has_a_row():
    known = {
        f"{callbacks.class_of(name).__name__}.{argument}"
        for name, each in callbacks.CLASSES.items()
        for argument in each.changes
    }
    for name, cls in vars(keras.callbacks).items():
        if isinstance(cls, type) and name not in ("Callback", "CallbackList"):
            arguments = signature(cls).parameters.values()
            mine = {f"{name}.{a.name}" for a in arguments if a.kind != a.VAR_KEYWORD}
            assert mine <= known | callbacks.ELSEWHERE
