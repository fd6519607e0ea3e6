"""A kernel of Jupyter that runs cells, and can be killed or interrupted meanwhile."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any


class Kernel:
    """A kernel in a directory."""

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager, self._client = manager, client

    def outputs(
        self, cell: str, meanwhile: Callable[[], bool] | None = None
    ) -> list[dict[str, Any]]:
        """What a cell shows, as contents of messages; until the kernel is dead.

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
            shown.append(content)
        assert meanwhile is None, "it ended too early"
        return shown

    def run(self, cell: str, meanwhile: Callable[[], bool] | None = None) -> str:
        """The same as text: outputs in all formats, an error's name, its traceback."""
        shown = []
        for content in self.outputs(cell, meanwhile):
            shown.append(content.get("text", ""))
            shown += content.get("data", {}).values()
            shown += [content.get("ename", ""), *content.get("traceback", ())]
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
