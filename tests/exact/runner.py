"""Starts the attempts of a run, and says how each ended."""

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.compiling import compile_once
from support.forking import Client, environment

from .killing import Kill, committed
from .table import Row

SEED = 1
LIMIT = 120.0  # seconds of an attempt
NEW = "import sys, json; from exact import attempt; "  # -m would rename its classes
NEW += "attempt.perform(json.loads(sys.argv[1]))"
LIBRARIES = ("torch", "tensorflow", "grain", "torchdata.stateful_dataloader")


def backend_environment(backend: str, cache: Path) -> dict[str, str]:
    known = {k: v for k, v in environment().items() if k != "TF_CONFIG"}
    return known | compile_once(cache) | {"KERAS_BACKEND": backend}


class Servers:
    """One server for each backend, which has imported whatever brings data as well."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._clients: dict[str, Client] = {}

    def of(self, backend: str) -> Client:
        if backend not in self._clients:
            variables = backend_environment(backend, self._cache / backend)
            command = ["-P", "-m", "exact.server", *LIBRARIES]  # not the checkout
            self._clients[backend] = Client(command, variables)
        return self._clients[backend]

    def stop(self) -> None:
        for client in self._clients.values():
            client.stop()


@dataclass
class Run:
    """Attempts on one directory."""

    servers: Servers
    backend: str
    row: Row
    home: Path
    attempts: int = 0

    def __call__(
        self, kill: str | None = None, *, plain: bool = False
    ) -> list[dict[str, Any]]:
        """Make an attempt that is killed there.

        After the first checkpoint each has another seed: what an exact resume needs
        must come out of the checkpoint, not out of a program that happens to be seeded.

        Returns:
            What each process left and trained, if none was to be killed.
        """
        self.attempts += 1
        self.home.mkdir(parents=True, exist_ok=True)
        seed = SEED + 1000 * self.attempts * bool(committed(self.home))
        out = f"record-{self.attempts}"
        order = {"row": self.row.id, "home": str(self.home), "out": out}
        order |= {"plain": plain, "kill": kill, "seed": seed}
        ends = self._perform(order)
        due = [0] * self.row.workers
        if kill is not None:
            parsed = Kill.parse(kill)
            victim = int(parsed.where[-1]) if "worker" in parsed.where else 0
            due[victim] = parsed.status
            if len(due) > 1:  # the others cannot go on, and say so
                due[1 - victim] = 1
        assert ends == due, f"{kill}: {ends}, not {due}\n{self._logs()}"
        if kill is not None:
            return []
        records = sorted(self.home.glob(f"{out}*"))
        return [json.loads(path.read_text()) for path in records]

    def damage(self) -> None:
        """Change one bit of the newest checkpoint."""
        newest = max(committed(self.home / "run"))
        files = (path for path in Path(newest).rglob("*") if path.is_file())
        largest = max(files, key=lambda path: path.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)

    def _perform(self, order: dict[str, Any]) -> list[int | str]:
        logs = [self.home / f"log-{n}" for n in range(self.row.workers)]
        if self.row.fresh and committed(self.home):
            with logs[0].open("w") as output:
                done = subprocess.run(
                    [sys.executable, "-P", "-c", NEW, json.dumps(order)],
                    stdout=output,
                    stderr=output,
                    env=backend_environment(self.backend, self.home / "compiled"),
                    timeout=LIMIT,
                )
            return [done.returncode]
        environments = [{}] if len(logs) == 1 else together(len(logs))
        processes = [
            {"log": str(log), "environment": variables}
            for log, variables in zip(logs, environments, strict=True)
        ]
        request = {"order": order, "processes": processes, "limit": LIMIT}
        return self.servers.of(self.backend).ask(request)

    def _logs(self) -> str:
        return "\n".join(p.read_text()[-4000:] for p in self.home.glob("log-*"))


def together(count: int) -> list[dict[str, str]]:
    """What the documentation has processes find each other by."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count + 1)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        meeting, *ports = (each.getsockname()[1] for each in sockets)
    workers = [f"127.0.0.1:{port}" for port in ports]
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(meeting),
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"127.0.0.1:{meeting}",
            "KERAS_DISTRIBUTION_NUM_PROCESSES": str(count),
            "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
            "TF_CONFIG": json.dumps(
                {
                    "cluster": {"worker": workers},
                    "task": {"type": "worker", "index": rank},
                }
            ),
        }
        for rank in range(count)
    ]
