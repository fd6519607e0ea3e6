"""The comparison of Keras's own tests without and with us tells what it must."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import ROOT

pytestmark = pytest.mark.once

RUNNER = ROOT / "tests" / "keras_suite" / "run.py"


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
    ("before", "after", "said"),
    [
        ("passed", "passed", None),
        ("passed", "failed", "failed with us, passes without: AssertionError"),
        ("passed", "skipped", "skipped with us"),
        ("passed", "missing", "missing with us"),
        ("failed", "failed", None),
        ("skipped", "skipped", None),
    ],
)
def test_only_a_test_that_we_change_is_reported(
    runner: ModuleType, before: str, after: str, said: str | None
) -> None:
    """With the last line of its failure."""
    without = {"test": runner.Outcome(before)}
    text = "Traceback\nAssertionError\n" if after == "failed" else ""
    with_us = {} if after == "missing" else {"test": runner.Outcome(after, text)}
    problems = runner.compare(without, with_us)
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
