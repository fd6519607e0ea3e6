"""Runs Keras's own tests without us, then with us, and compares test by test.

The tests come from the installed Keras. With us, ``Trainer.fit`` is ``resilient.fit``
saving at every step; no test may fail that passes without. Tests in not_arrays.toml,
whose data has no position yet, must be refused with DataNotResumableError instead: one
that passes must leave the list. Exit status: 0 if all that holds, else 1.

    KERAS_BACKEND=jax python tests/keras_suite/run.py [pytest arguments]
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REFUSAL = "DataNotResumableError"


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


def listed() -> dict[str, str]:
    """Tests whose data is not arrays, each with the reason."""
    groups = tomllib.loads((HERE / "not_arrays.toml").read_text())["tests"]
    return {name: group["reason"] for group in groups for name in group["ids"]}


def compare(
    without: dict[str, Outcome], with_us: dict[str, Outcome], refused: dict[str, str]
) -> list[str]:
    """Say what is wrong with each test that we change; empty if nothing is."""
    problems = []
    for name, before in without.items():
        after = with_us.get(name, Outcome("missing"))
        if name in refused and before.verdict == "passed":
            if after.verdict == "passed":
                problems.append(f"{name}: passes with us, take it off the list")
            elif REFUSAL not in after.text:
                problems.append(f"{name}: {after.verdict} for another reason than data")
        elif before.verdict == "passed" and after.verdict != "passed":
            problems.append(f"{name}: {after.verdict} with us, passes without")
    return problems


def table(
    without: dict[str, Outcome], with_us: dict[str, Outcome], refused: dict[str, str]
) -> str:
    """Counts without and with us; refused tests are counted apart."""
    rows = []
    for label, outcomes in (("without us", without), ("with us", with_us)):
        counts = Counter(outcome.verdict for outcome in outcomes.values())
        ours = sum(
            outcomes[name].verdict == "failed" and without[name].verdict == "passed"
            for name in refused
            if name in outcomes and label == "with us"
        )
        failed = counts["failed"] - ours
        rows.append(
            f"{label:<12}{counts['passed']:>8}{counts['skipped']:>9}{failed:>8}{ours:>9}"
        )
    head = f"{'':<12}{'passed':>8}{'skipped':>9}{'failed':>8}{'refused':>9}"
    return "\n".join([head, *rows])


def main() -> int:
    """Run twice, compare, print."""
    arguments = sys.argv[1:]
    without = run("without", arguments)
    with_us = run("with", arguments)
    refused = listed()
    problems = compare(without, with_us, refused)
    print(f"\nKeras's own tests, {os.environ.get('KERAS_BACKEND')} backend")
    print(table(without, with_us, refused))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
