"""How many resumes of a test session were compared with the attempt before the kill.

Whatever a test leaves in its temporary directory counts, by child processes as well. A
difference is no failure by itself, for some tests lose state on purpose: it is named.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# By attempt, for directories that are removed lend others their names: the file, and
# how many batches repeated; None: one differs.
Found = dict[str, tuple[str, int | None]]
FOUND = pytest.StashKey[Found]()
LARGE = 1 << 26  # bytes: no test trains for so long, and one makes a file of a terabyte


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Count before the fixture removes the directory, if it does."""
    home = getattr(item, "funcargs", {}).get("tmp_path")
    if home is not None:
        item.config.stash.setdefault(FOUND, {}).update(witnessed(home))
    return (yield)


@pytest.hookimpl(tryfirst=True)  # then the directories that tests share are removed
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    found = config.stash.setdefault(FOUND, {})
    factory = getattr(config, "_tmp_path_factory", None)
    if factory is not None and factory._basetemp is not None:
        found |= witnessed(factory._basetemp)
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["witnessed"] = found


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    found = getattr(node, "workeroutput", {}).get("witnessed", {})
    node.config.stash.setdefault(FOUND, {}).update(found)


def witnessed(home: Path) -> Found:
    """The outcome of each comparison under a directory."""
    found = Found()
    for path in home.rglob("events*.jsonl"):
        with contextlib.suppress(OSError):
            read = path.is_file() and path.stat().st_size < LARGE
            for line in path.read_bytes().splitlines() if read else ():
                if b'repeated"' in line:
                    with contextlib.suppress(KeyError, TypeError, ValueError):
                        found |= _outcome(path, json.loads(line))
    return found


def _outcome(path: Path, event: Any) -> Found:
    if event["event"] not in ("repeated", "not repeated"):
        return {}
    same = event["repeated"] if event["event"] == "repeated" else None
    return {event["attempt"]: (str(path), same)}


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    every = config.stash.get(FOUND, {}).values()
    if not every:
        return
    different = [path for path, repeated in every if repeated is None]
    resumes = sum(repeated != 0 for _, repeated in every)
    batches = sum(repeated or 0 for _, repeated in every)
    counted = f"{batches:,} batches repeated, {len(different)} differ"
    terminalreporter.write_line(f"witnesses: {resumes:,} resumes, {counted}")
    for path in different:
        terminalreporter.write_line(f"  {path}")
