"""The notebook of the examples, in a kernel that is killed and interrupted."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support import EXAMPLES
from support.gang import run_alone
from support.kernel import kernel

from resilient.storage.layout import committed_steps

NOTEBOOK = json.loads((EXAMPLES / "kill_me.ipynb").read_text())
# Fewer epochs, but enough for a kill and an interrupt.
CELLS = [
    "".join(cell["source"]).replace("epochs=30", "epochs=12")
    for cell in NOTEBOOK["cells"]
    if cell["cell_type"] == "code"
]
TRAINING = next(cell for cell in CELLS if "run.fit" in cell)
DIGEST = re.compile(r"^digest (\w{64})$", re.MULTILINE)


def saved(directory: Path) -> int:
    """The newest step that is saved."""
    checkpoints = directory / "runs" / "kill-me"
    return max(committed_steps(checkpoints), default=0) if checkpoints.exists() else 0


@pytest.mark.spread(over=["torch"])
@pytest.mark.timeout(600)
def test_killed_and_interrupted_it_ends_with_the_digest_of_a_run_left_alone(
    tmp_path: Path,
) -> None:
    """SIGKILL, run all again, interrupt, run the cell again; nothing of it is noise.

    The run left alone is a script of the same cells.
    """
    alone, killed = tmp_path / "alone.py", tmp_path / "killed"
    cells = "\n".join(CELLS).replace("runs/kill-me", str(tmp_path / "alone"))
    alone.write_text(cells)
    ended, text = run_alone(alone)
    expected = DIGEST.findall(text)
    assert (ended, len(expected)) == (0, 1), text

    def once_saved(step: int, act: Callable[[], None]) -> Callable[[], bool]:
        def meanwhile() -> bool:
            if saved(killed) < step:
                return False
            act()
            return True

        return meanwhile

    with kernel(killed) as one:
        for cell in CELLS[: CELLS.index(TRAINING)]:
            one.run(cell)
        one.run(TRAINING, once_saved(60, one.kill))
    before = saved(killed)
    with kernel(killed) as one:
        for cell in CELLS[: CELLS.index(TRAINING)]:
            one.run(cell)
        text = one.run(TRAINING, once_saved(before + 60, one.interrupt))
        assert f"Resumed at step {before}" in text
        for words in ("CellStopped", "Run this cell again to continue.", "by SIGINT"):
            assert words in text
        for noise in ("To exit", "SystemExit", "%tb", "Traceback", "line"):
            assert noise not in text, text
        text = "\n".join(map(one.run, CELLS[CELLS.index(TRAINING) :]))
        assert "Resumed at step" in text
    assert DIGEST.findall(text) == expected
    assert "<ResilientFit " in text  # the run, as text
