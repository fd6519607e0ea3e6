"""The comparison of Keras's own tests without and with us tells what it must."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

RUNNER = Path(__file__).parent / "keras_suite" / "run.py"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keras_suite_runner", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("before", "after", "text", "listed", "said"),
    [
        ("passed", "passed", "", False, None),
        ("passed", "failed", "AssertionError", False, "failed with us"),
        ("passed", "skipped", "", False, "skipped with us"),
        ("passed", "missing", "", False, "missing with us"),
        ("failed", "failed", "AssertionError", False, None),
        ("skipped", "skipped", "", True, None),
        ("passed", "failed", "DataNotResumableError: x", True, None),
        ("passed", "failed", "AssertionError", True, "another reason"),
        ("passed", "passed", "", True, "take it off the list"),
    ],
)
def test_only_a_test_that_we_change_is_reported(
    runner: ModuleType,
    before: str,
    after: str,
    text: str,
    listed: bool,
    said: str | None,
) -> None:
    """Refused data is fine if listed; a listed test that passes must leave the list."""
    without = {"test": runner.Outcome(before)}
    with_us = {} if after == "missing" else {"test": runner.Outcome(after, text)}
    refused = {"test": "its data is a generator"} if listed else {}
    problems = runner.compare(without, with_us, refused)
    assert len(problems) == (said is not None)
    assert said is None or said in problems[0]


def test_a_failed_phase_is_a_failed_test(runner: ModuleType, tmp_path: Path) -> None:
    """A test that passes and then fails in teardown has failed."""
    report = tmp_path / "report.jsonl"
    report.write_text(
        '{"id": "a", "outcome": "passed", "text": ""}\n'
        '{"id": "a", "outcome": "failed", "text": "no"}\n'
        '{"id": "a", "outcome": "passed", "text": ""}\n'
        '{"id": "b", "outcome": "passed", "text": ""}\n'
    )
    found = runner.read(report)
    assert found == {"a": runner.Outcome("failed", "no"), "b": runner.Outcome("passed")}


def test_each_listed_test_has_a_reason_and_is_listed_once(runner: ModuleType) -> None:
    """The list can be read."""
    text = (RUNNER.parent / "not_arrays.toml").read_text()
    listed = runner.listed()
    assert listed
    assert all(listed.values())
    assert all(text.count(f'"{name}"') == 1 for name in listed)
