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
from .scenarios.registry import Scenario

MakeRun = Callable[..., Run]
Expected = Callable[..., Record]


ServerFor = Callable[[str], Server]

# The libraries of data that are not arrays; all of them are there in `nox -s sources`.
LIBRARIES = ("torch", "tensorflow", "grain", "torchdata.stateful_dataloader")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("compiled"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def server_for(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerFor]:
    """The server that has imported what a scenario needs."""
    with_libraries = Server(tmp_path_factory.mktemp("compiled"), LIBRARIES)
    sources = {name for name, known in SCENARIOS.items() if known.source}
    yield lambda name: with_libraries if name in sources else server
    with_libraries.stop()


@pytest.fixture
def run_of(server_for: ServerFor, tmp_path: Path) -> MakeRun:
    """Make a ``Run`` of a scenario in a directory of its own."""
    made = iter(range(1000))

    def make(name: str, **settings: Any) -> Run:
        home = tmp_path / f"run-{next(made)}"
        return Run(server_for(name), name, home, **settings)

    return make


@pytest.fixture(scope="session")
def uninterrupted(
    server_for: ServerFor, tmp_path_factory: pytest.TempPathFactory
) -> Expected:
    """What plain ``model.fit`` leaves when nothing goes wrong."""
    known: dict[str, Record] = {}

    def expected(scenario: str, compile: Any = None, **fit: Any) -> Record:
        key = json.dumps([scenario, compile, fit], sort_keys=True)
        if key not in known:
            home = tmp_path_factory.mktemp(scenario)
            run = Run(server_for(scenario), scenario, home, compile=compile or {})
            mode = "keras" if SCENARIOS[scenario].in_keras else "resilient"
            known[key] = run(mode=mode, **fit).record
        return known[key]

    return expected


spread = pytest.mark.spread


def marks(scenario: Scenario, backend: str) -> list[pytest.MarkDecorator]:
    """The short session runs it on one backend, of those on which it is not slow."""
    over = [each for each in scenario.backends if each not in scenario.slow]
    return [
        spread(over=over),
        *[pytest.mark.long] * (scenario.in_exact or backend in scenario.slow),
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a ``scenario`` argument runs on all that this backend can train.

    With a ``source`` argument, on all of them that are about a source of data.
    """
    backend = keras.backend.backend()
    for argument in ("scenario", "source"):
        if argument in metafunc.fixturenames:
            wanted = argument == "source"
            known = [s for s in SCENARIOS.values() if s.source == wanted]
            params = [
                pytest.param(s.name, marks=marks(s, backend))
                for s in known
                if backend in s.backends
            ]
            # This scope keeps the tests of one scenario together: one worker trains
            # and compiles it, instead of both.
            metafunc.parametrize(argument, params, scope="session")
