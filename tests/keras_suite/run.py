"""Runs Keras's own tests without us, then with us, and compares test by test.

The tests come from the installed Keras. With us, ``Trainer.fit`` is ``resilient.fit``
saving at every step; no test may fail that passes without. Exit status: 0 if none does,
else 1.

    KERAS_BACKEND=jax python tests/keras_suite/run.py [pytest arguments]
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Outcome:
    """How a test ended: passed, skipped or failed, and the text of its failure."""

    verdict: str
    text: str = ""


def keras_source() -> Path:
    """Where the installed Keras keeps its modules and their tests."""
    spec = importlib.util.find_spec("keras")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "src"


def test_files() -> list[str]:
    """Keras's tests of training and of callbacks, in the installed wheel."""
    trainers = keras_source() / "trainers"
    callbacks = sorted((keras_source() / "callbacks").glob("*_test.py"))
    files = [trainers / "trainer_test.py", trainers / "epoch_iterator_test.py"]
    return [str(path) for path in files + callbacks]


def run(mode: str, arguments: list[str]) -> dict[str, Outcome]:
    """Run them all in a child process, and return the outcome of each test."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.jsonl"
        report.touch()
        child = subprocess.run(
            [
                *[sys.executable, "-m", "pytest", "-p", "conftest", "-q", "--tb=short"],
                *["-c", str(HERE / "pytest.ini"), "--rootdir", str(keras_source())],
                *["--timeout=300", "-p", "no:cacheprovider", "--import-mode=importlib"],
                *[*test_files(), *arguments],
            ],
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(
                    [str(HERE), os.environ.get("PYTHONPATH", "")]
                ),
                "RESILIENT_SUITE": mode,
                "RESILIENT_SUITE_REPORT": str(report),
                "TF_CPP_MIN_LOG_LEVEL": "3",
            },
            cwd=directory,
            check=False,
        )
        if child.returncode not in (0, 1):  # 1: some tests failed, which we look into
            raise SystemExit(f"pytest broke off with status {child.returncode}")
        return read(report)


def read(report: Path) -> dict[str, Outcome]:
    """Merge the phases of each test: one failed phase is a failed test."""
    outcomes: dict[str, Outcome] = {}
    rank = ["passed", "skipped", "failed"]
    for line in report.read_text().splitlines():
        phase = json.loads(line)
        name = phase["id"]
        seen = outcomes.get(name, Outcome("passed"))
        if rank.index(phase["outcome"]) >= rank.index(seen.verdict):
            outcomes[name] = Outcome(phase["outcome"], phase["text"])
    return outcomes


def compare(without: dict[str, Outcome], with_us: dict[str, Outcome]) -> list[str]:
    """Say which tests pass without us only; empty if none does."""
    problems = []
    for name, before in without.items():
        after = with_us.get(name, Outcome("missing"))
        if before.verdict == "passed" and after.verdict != "passed":
            last = after.text.strip().rpartition("\n")[2]
            problems.append(f"{name}: {after.verdict} with us, passes without: {last}")
    return problems


def table(without: dict[str, Outcome], with_us: dict[str, Outcome]) -> str:
    """Counts without and with us."""
    rows = [f"{'':<12}{'passed':>8}{'skipped':>9}{'failed':>8}"]
    for label, outcomes in (("without us", without), ("with us", with_us)):
        n = Counter(outcome.verdict for outcome in outcomes.values())
        rows.append(f"{label:<12}{n['passed']:>8}{n['skipped']:>9}{n['failed']:>8}")
    return "\n".join(rows)


def main() -> int:
    """Run twice, compare, print."""
    arguments = sys.argv[1:]
    without = run("without", arguments)
    with_us = run("with", arguments)
    problems = compare(without, with_us)
    print(f"\nKeras's own tests, {os.environ.get('KERAS_BACKEND')} backend")
    print(table(without, with_us))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
