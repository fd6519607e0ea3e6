"""Runs Keras's own tests without us, then with us, and compares test by test.

With us, ``Trainer.fit`` is ``resilient.fit`` saving at every step; no test may fail
that passes without. Exit status: 0 if none does, else 1.

    KERAS_BACKEND=jax python tests/keras_suite/run.py [--checkout DIR] [pytest ...]

The tests are those of the installed Keras, or of a checkout of Keras's repository:
nightly builds come without tests.
"""

import argparse
import importlib.util
import json
import os
import shutil
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


def installed() -> Path:
    """The folder that the installed Keras is in."""
    spec = importlib.util.find_spec("keras")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def copy_tests(checkout: Path, into: Path) -> list[str]:
    """Keras's tests of training and of callbacks, away from the Keras beside them."""
    source = checkout / "keras" / "src"
    callbacks = sorted((source / "callbacks").glob("*_test.py"))
    names = ("trainer_test.py", "epoch_iterator_test.py")
    files = [source / "trainers" / name for name in names] + callbacks
    return [shutil.copy(path, into) for path in files]


def run(mode: str, checkout: Path, arguments: list[str]) -> dict[str, Outcome]:
    """Run them all in a child process, and return the outcome of each test."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.jsonl"
        report.touch()
        child = subprocess.run(
            [
                *[sys.executable, "-m", "pytest", "-p", "conftest", "-q", "--tb=short"],
                *["-c", str(HERE / "pytest.ini"), "--rootdir", directory],
                *["--timeout=300", "-p", "no:cacheprovider", "--import-mode=importlib"],
                *[*copy_tests(checkout, Path(directory)), *arguments],
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkout", type=Path, default=installed())
    options, arguments = parser.parse_known_args()
    without = run("without", options.checkout, arguments)
    with_us = run("with", options.checkout, arguments)
    problems = compare(without, with_us)
    print(f"\nKeras's own tests, {os.environ.get('KERAS_BACKEND')} backend")
    print(table(without, with_us))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
