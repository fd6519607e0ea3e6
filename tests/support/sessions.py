"""Which tests a session of nox runs, of those that are as good on one backend.

What a test marked ``spread`` shows hardly depends on the backend. The short session
runs it on one of them, chosen by a hash of its name: every such test on some backend,
and more of them where a test takes less time. In a module that is marked so, a test
runs on each backend if it is marked ``everywhere``, or skipped on some. The long
session runs the rest, and what is marked ``long``. By hand, without ``--session``,
pytest runs whatever it is asked to.

    --session=short       what plain nox runs
    --session=long        the rest
    --session=long:3/36   the third of 36 shares of the rest
"""

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from . import BACKENDS, ROOT

OF_PROCESSES = ("docs", "kill", "kill_workers", "supervise")

# Of 20 tests. TensorFlow traces and JAX compiles for longer than a test takes torch.
TURNS = {"torch": 18, "jax": 1, "tensorflow": 1}


@dataclass(frozen=True)
class Session:
    """What ``--session`` asks for.

    Attributes:
        long: Whether it is the long one.
        share: Which share of the long one, of how many; counted from 1.
    """

    long: bool
    share: tuple[int, int] = (1, 1)

    @classmethod
    def parse(cls, text: str) -> "Session":
        kind, _, share = text.partition(":")
        number, _, count = (share or "1/1").partition("/")
        try:
            found = cls(kind == "long", (int(number), int(count)))
        except ValueError:
            found = cls(long=False, share=(0, 0))
        if kind not in ("short", "long") or not 1 <= found.share[0] <= found.share[1]:
            raise pytest.UsageError(
                f"--session has to be short, long, or long:K/N.\nReceived: {text!r}"
            )
        return found

    def has(self, item: pytest.Item, backend: str) -> bool:
        long = item.get_closest_marker("long") is not None or not is_turn(item, backend)
        if long != self.long:
            return False
        number, count = self.share
        return one_of(count, group_of(item)) == number - 1


def is_turn(item: pytest.Item, backend: str) -> bool:
    """Whether the short session runs a test on this backend."""
    marker = item.get_closest_marker("spread")
    if marker is None or item.get_closest_marker("everywhere") or is_skipped(item):
        return True
    own = {each.name for each in item.own_markers}
    if "over" not in marker.kwargs and "skipif" in own:
        return True
    over = marker.kwargs.get("over", BACKENDS)
    turns = [each for each in over for _ in range(TURNS[each])]
    return bool(backend == turns[one_of(len(turns), group_of(item))])


def group_of(item: pytest.Item) -> str:
    """Tests of one group stay together: they share what is trained to compare with."""
    group = item.get_closest_marker("xdist_group")
    return item.nodeid if group is None else str(group.args[0])


def is_skipped(item: pytest.Item) -> bool:
    """Whether it is not for this backend anyway, and so must not have its turn here."""
    conditions = (marker.args[0] for marker in item.iter_markers("skipif"))
    return any(conditions) or item.get_closest_marker("skip") is not None


def starts_processes(item: pytest.Item) -> bool:
    """Whether it is about whole processes, as tests in these directories are."""
    folders = (ROOT / "tests" / name for name in OF_PROCESSES)
    return any(item.path.is_relative_to(folder) for folder in folders)


def one_of(count: int, text: str) -> int:
    """The same number below ``count`` for the same text, in each process."""
    return zlib.crc32(text.encode()) % count


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--session",
        type=Session.parse,
        help="short, long, or long:K/N: what nox runs, see tests/support/sessions.py",
    )


LEFT_OUT = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)  # xdist adds its groups to the names
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    session = config.getoption("session")
    if session is None:
        return
    backend = os.environ["KERAS_BACKEND"]
    kept = [item for item in items if session.has(item, backend)]
    left = [item for item in items if not session.has(item, backend)]
    config.stash[LEFT_OUT] = len(left)
    if left:
        config.hook.pytest_deselected(items=left)
    # What takes long begins first, or one worker would be left with it in the end.
    items[:] = sorted(kept, key=lambda item: not starts_processes(item))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With xdist the main process collects nothing: it has to be told."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", {})
    node.config.stash[LEFT_OUT] = output.get("left out", 0)


def pytest_terminal_summary(
    terminalreporter: Any, config: pytest.Config
) -> Iterator[None] | None:
    left = config.stash.get(LEFT_OUT, 0)
    if left:
        terminalreporter.write_line(
            f"{left} tests are left to other backends and to the long sessions "
            "(CONTRIBUTING.md says which)"
        )
