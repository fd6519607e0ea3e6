"""Rows by backend, the servers of a pytest worker, and how long each backend took."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from .runner import Servers
from .table import BACKENDS, by_backend

pytest_plugins = ["support.witnessed"]

BEGUN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend", choices=BACKENDS, help="run the rows of this one only"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "row" not in metafunc.fixturenames:
        return
    only = metafunc.config.getoption("backend")
    params = [
        pytest.param(
            *(backend, row),
            id=f"{backend}-{row.id}",
            marks=pytest.mark.xdist_group(backend),  # which has one server
        )
        for backend, row in by_backend()
        if only in (None, backend)
    ]
    metafunc.parametrize(("backend", "row"), params)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("compiled"))
    yield servers
    servers.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Rows and seconds of each backend."""
    rows: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            name = getattr(report, "nodeid", "").partition("[")[2].partition("-")[0]
            if name in BACKENDS:
                rows[name] += getattr(report, "when", "") == "call"
                seconds[name] += getattr(report, "duration", 0.0)
    for name in rows:
        terminalreporter.write_line(f"{name}: {rows[name]} rows, {seconds[name]:.0f} s")
    minutes = (time.monotonic() - BEGUN) / 60
    terminalreporter.write_line(f"nox -s exact took {minutes:.1f} minutes")
