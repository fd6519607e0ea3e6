"""The notebook of the examples, in a kernel that is killed and interrupted."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from support import EXAMPLES
from support.gang import run_alone

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


class Kernel:
    """A kernel of Jupyter in a directory."""

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager, self._client = manager, client

    def run(self, cell: str, meanwhile: Callable[[], bool] | None = None) -> str:
        """What a cell shows: outputs, an error's name, and its traceback.

        Args:
            cell: Its source.
            meanwhile: Asked again and again until it returns True.
        """
        asked, shown = self._client.execute(cell), []
        while self._manager.is_alive():
            if meanwhile is not None and meanwhile():
                meanwhile = None
            try:
                message = self._client.get_iopub_msg(timeout=0.05)
            except Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            shown.append(content.get("text", ""))
            shown += content.get("data", {}).values()
            shown += [content.get("ename", ""), *content.get("traceback", ())]
        assert meanwhile is None, "it ended too early"
        return "\n".join(shown)

    def kill(self) -> None:
        self._manager.signal_kernel(signal.SIGKILL)

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()


@contextmanager
def kernel(directory: Path) -> Iterator[Kernel]:
    from jupyter_client.manager import KernelManager

    directory.mkdir(exist_ok=True)
    manager = KernelManager()
    manager.start_kernel(cwd=str(directory))
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=120)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


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
    assert "<table>" in text  # of the run
