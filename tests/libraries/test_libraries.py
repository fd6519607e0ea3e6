"""Programs of other libraries are killed and run again, and end with equal bytes.

None of them mentions us: ``resilient run --save`` makes their fits resumable.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Batches of each attempt that is killed; the rest of a program is run by the last.
KILLS = {
    "tuner": "7,50,60",  # in the first trial, the second, and the fit of the best
    "hub": "7,30,20",  # in both phases
    "bayes": "7,25,14",
    "rs": "7,25,30",
    "sk": "7,60,80",  # in folds, and in the last fit
}


def digest(environment: dict[str, str], *command: object) -> tuple[str, str]:
    """The line that a program prints at its end; and what was said meanwhile."""
    done = subprocess.run(
        [*map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    (line,) = (s for s in done.stdout.splitlines() if s.startswith("digest "))
    return line, done.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", KILLS)
def test_killed_and_run_again(name, child_environment, tmp_path):
    program = HERE / f"{name}.py"
    plain, _ = digest(child_environment, sys.executable, program, tmp_path / "plain")
    ours, told = digest(
        child_environment,
        *(sys.executable, "-m", "resilient", "run", "--save", tmp_path / "runs"),
        *("--save-freq", "3", "--backoff", "0.01", "--"),
        *(sys.executable, HERE / "killed.py", KILLS[name], tmp_path / "attempts"),
        *(program, tmp_path / "ours"),
    )
    assert told.count("it was killed by SIGKILL") == len(KILLS[name].split(","))
    assert ours == plain
