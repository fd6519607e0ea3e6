"""Lets a search of KerasTuner that is run again meet the trials that it had.

A tuner that finds its project reloads it and goes on with other trials: their fits
would come in another order, and begin with other random numbers. So a search that began
under ``enabled`` begins again, with the seed that it had drawn, and the fits of its
earlier trials return at once. A file in its project says which program began it.

Only public names are wrapped. Where KerasTuner lacks one of them, it reloads, and
``calls`` refuses the other order.
"""

import contextlib
import inspect
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wrapt

from resilient.errors import CheckpointMismatchError, DivergedError, ResilientError
from resilient.storage.files import replace_file
from resilient.training.enabled import calls
from resilient.user_line import ending_at_user_line

MARK = "resilient.txt"
_TUNER = "tuner0.json"  # where it is, KerasTuner reloads


@wrapt.when_imported("keras_tuner.engine.oracle")
def wrap_oracles(module: Any) -> None:
    """Let each oracle that is given no seed draw the one that it drew before."""

    def made(plain: Any, _: Any, args: Any, kwargs: Any) -> None:
        given = inspect.signature(plain).bind(*args, **kwargs)
        if not given.arguments.get("seed") and (block := calls.current()):
            # As KerasTuner would.
            given.arguments["seed"] = block.seed(random.randint(1, 10_000))
        plain(*given.args, **given.kwargs)

    wrapt.wrap_function_wrapper(module, "Oracle.__init__", made)


@wrapt.when_imported("keras_tuner.engine.base_tuner")
def wrap_tuners(module: Any) -> None:
    """Let each tuner whose search began before begin it again."""

    @ending_at_user_line
    def made(plain: Any, _: Any, args: Any, kwargs: Any) -> None:
        bound = inspect.signature(plain).bind(*args, **kwargs)
        given, block = bound.arguments, calls.current()
        where = given.get("directory") or "."
        if block is None or "://" in str(where):
            plain(*args, **kwargs)
            return
        project = Path(where, given.get("project_name") or "untitled_project").resolve()
        begun, overwrite = project in block.projects, bool(given.get("overwrite"))
        mark, ours = project / MARK, os.path.relpath(block.directory, project)
        if not begun and mark.exists() and mark.read_text() == ours:
            given["overwrite"] = False
            (project / _TUNER).unlink(missing_ok=True)
        elif begun == overwrite and (project / _TUNER).exists():
            raise CheckpointMismatchError(
                "Another KerasTuner search began in this project, so this one could "
                "not begin there again.",
                received=project,
                hint="Give each search a project_name of its own, or delete the "
                "project.",
            )
        plain(*bound.args, **bound.kwargs)
        block.projects.add(project)
        project.mkdir(parents=True, exist_ok=True)
        replace_file(mark, ours.encode())

    wrapt.wrap_function_wrapper(module, "BaseTuner.__init__", made)


@contextlib.contextmanager
def ending_search() -> Iterator[None]:
    """Around a fit: our errors are fatal for the search that it belongs to, if any.

    A trial that diverged has failed, and the search goes on.
    """
    try:
        yield
    except ResilientError as error:
        kind = type(error)
        fatal = getattr(sys.modules.get("keras_tuner.errors"), "FatalError", kind)
        if not isinstance(error, (DivergedError, fatal)):
            of = {"__module__": kind.__module__}
            error.__class__ = type(kind.__name__, (kind, fatal), of)
        raise
