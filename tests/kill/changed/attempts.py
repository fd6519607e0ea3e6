"""Two processes: in one, scripts are killed; in the other, changed ones go on.

``python -m kill.changed.attempts killed ORDER`` imports the backend, and forks a
process for each script that is to be killed. ``... resumed ORDER`` takes for each
change a copy of what such a process left, as soon as it is there, and says of each how
it went on.
"""

import gc
import json
import logging
import os
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras
from support import forking
from support.waited import wait_for_each_save

from ..attempt import use_one_thread
from . import callbacks, settings
from .scripts import Left

LIMIT = 120.0  # seconds until a script is killed
BASES = settings.BASES | callbacks.BASES
CHANGES = {
    **{name: (base, script) for name, (base, script, _) in settings.CHANGES.items()},
    **callbacks.CHANGED,
}
UNCHANGED, UNINTERRUPTED = "unchanged ", "uninterrupted "


def kill(home: Path, names: list[str]) -> None:
    """Let each script train until it kills itself; its status is in a file then."""
    if find_spec("tensorflow"):  # or each would import it, as Keras does
        import_module("tensorflow")
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # no thread runs here
    gc.freeze()
    for name in names:
        place = home / "killed" / name
        place.mkdir(parents=True)
        pid = os.fork()
        if pid == 0:
            forking.become(place / "log", lambda n=name, p=place: _train(n, p))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        (place / "ended.part").write_text(str(status))
        (place / "ended.part").rename(place / "ended")


def _train(name: str, place: Path) -> None:
    _at_work(place)
    BASES[name](place / "run", kill=True)


def resume(home: Path, names: list[str]) -> None:
    """Go on from copies; ``found.json`` says how."""
    found = {}
    gc.freeze()  # or each collection would pass over all that was imported
    for number, name in enumerate(names):
        base, script = scripts_of(name)
        place = home / "resumed" / str(number)
        killed = home / "killed" / base
        _wait(killed / "ended")
        if name.startswith(UNINTERRUPTED):
            place.mkdir(parents=True)
        else:
            shutil.copytree(killed, place)
        ended = [(killed / "ended").read_text(), (killed / "log").read_text()]
        found[name] = {"ended": ended, **_noted(script, place)}
    (home / "found.json").write_text(json.dumps(found))


def scripts_of(name: str) -> tuple[str, Any]:
    """The script that is killed, and the one that goes on."""
    if name.startswith(UNCHANGED):
        base = name.removeprefix(UNCHANGED)
        return base, BASES[base]
    return CHANGES[name.removeprefix(UNINTERRUPTED)]


def _noted(script: Any, place: Path) -> dict[str, Any]:
    # The names of layers are those of a new process.
    keras.backend.clear_session(free_memory=False)
    home = Path.cwd()
    _at_work(place)
    left: Left | None = None
    error = None
    with _log() as log, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "__array__ implementation doesn't")
        warnings.filterwarnings("ignore", "Could not reach RemoteMonitor")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        try:
            left = script(place / "run", kill=False)
        except Exception as caught:
            error = [type(caught).__name__, str(caught), traceback.format_exc()]
    os.chdir(home)
    said = [[type(w.message).__name__, str(w.message)] for w in warned]
    return {"error": error, "warnings": said, "log": log, "left": left}


def _at_work(place: Path) -> None:
    (place / "files").mkdir(exist_ok=True)
    os.chdir(place / "files")
    use_one_thread()
    wait_for_each_save()


@contextmanager
def _log() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("resilient")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def _wait(file: Path) -> None:
    until = time.monotonic() + LIMIT
    while not file.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{file} does not appear")
        time.sleep(0.01)


if __name__ == "__main__":
    order = json.loads(sys.argv[2])
    {"killed": kill, "resumed": resume}[sys.argv[1]](
        Path(order["home"]), order["names"]
    )
