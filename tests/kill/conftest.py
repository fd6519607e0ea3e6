"""One fork server per pytest worker; each uninterrupted run is trained once."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

from .harness import Run, Server
from .record import Record
from .scenarios import SCENARIOS

MakeRun = Callable[..., Run]
Expected = Callable[..., Record]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("compiled"))
    yield server
    server.stop()


@pytest.fixture
def run_of(server: Server, tmp_path: Path) -> MakeRun:
    """Make a ``Run`` of a scenario in a directory of its own."""
    made = iter(range(1000))

    def make(scenario: str, **settings: Any) -> Run:
        return Run(server, scenario, tmp_path / f"run-{next(made)}", **settings)

    return make


@pytest.fixture(scope="session")
def uninterrupted(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """What plain ``model.fit`` leaves when nothing goes wrong."""
    known: dict[str, Record] = {}

    def expected(scenario: str, compile: Any = None, **fit: Any) -> Record:
        key = json.dumps([scenario, compile, fit], sort_keys=True)
        if key not in known:
            home = tmp_path_factory.mktemp(scenario)
            run = Run(server, scenario, home, compile=compile or {})
            known[key] = run(mode="keras", **fit).record
        return known[key]

    return expected


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a ``scenario`` argument runs on all that this backend can train."""
    if "scenario" in metafunc.fixturenames:
        backend = keras.backend.backend()
        names = [s.name for s in SCENARIOS.values() if backend in s.backends]
        metafunc.parametrize("scenario", names)
