"""Programs of other libraries are killed and run again, and end with equal bytes.

None of them mentions us: ``resilient run --save`` makes their fits resumable.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Where each attempt is killed, see killed.py; the rest is run by the last.
KILLS = {
    # In fits; after one, before KerasTuner knows; in its files of this trial and that.
    "tuner random": "7,json8,fit2,json13,30",
    "tuner overwrite": "7,50,60",
    "tuner hyperband": "20,fit3,json30",
    "tuner bayes": "json2,fit1,json19,50",
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
        timeout=600,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    (line,) = (s for s in done.stdout.splitlines() if s.startswith("digest "))
    return line, done.stderr


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "kills"), KILLS.items(), ids=KILLS)
def test_killed_and_run_again(name, kills, child_environment, tmp_path):
    name, *kind = name.split()
    program = HERE / f"{name}.py"
    plain, _ = digest(
        child_environment, sys.executable, program, tmp_path / "plain", *kind
    )
    ours, told = digest(
        child_environment,
        *(sys.executable, "-m", "resilient", "run", "--save", tmp_path / "runs"),
        *("--save-freq", "3", "--backoff", "0.01", "--"),
        *(sys.executable, HERE / "killed.py", kills, tmp_path / "attempts"),
        *(program, tmp_path / "ours", *kind),
    )
    assert told.count("it was killed by SIGKILL") == len(kills.split(","))
    assert ours == plain
    assert "NotExactWarning" not in told
