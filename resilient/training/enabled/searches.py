"""Lets a search of KerasTuner that is run again meet the trials that it had.

A tuner that finds its project reloads it and goes on with other trials: their fits
would come in another order, and begin with other random numbers. So a search that began
under ``enabled`` begins again, with the seed that it had drawn, and the fits of its
earlier trials return at once. ``projects`` has its files.

Only public names are wrapped. Where KerasTuner lacks one of them, it reloads, and
``journal`` refuses the other order.
"""

import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient.errors import DivergedError, Text
from resilient.training.enabled.projects import Project
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    from resilient.training.enabled.journal import Journal

_NEEDED = {"directory", "project_name", "overwrite"}
# Where several processes search together, each gets its trials from another one.
_SEVERAL = ("KERASTUNER_ORACLE_IP", "KERASTUNER_TUNER_ID", "TF_CONFIG", "WORLD_SIZE")

_wrapped: Any = None  # the class
_searching = threading.local()  # has ``depth`` in a thread that searches


class _EndsSearch(BaseException):
    """Carries an error of ours through a search, which takes others for failed trials.

    Attributes:
        error: What is raised where the search was called.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error


def wrap(keras_tuner: Any, opened: "Callable[[], Journal | None]") -> None:
    """Wrap tuners and oracles, for the life of the process.

    Args:
        keras_tuner: The module; if it is still being imported, nothing is done.
        opened: Gives the journal of what is enabled; None if nothing is.
    """
    import wrapt

    global _wrapped
    base: Any = getattr(getattr(keras_tuner, "engine", None), "base_tuner", None)
    oracle: Any = getattr(keras_tuner, "Oracle", None)
    tuner: Any = getattr(base, "BaseTuner", None)
    if tuner is _wrapped or not hasattr(tuner, "search"):
        return
    _wrapped = tuner

    @ending_at_user_line
    def made_oracle(plain: Any, self: Any, args: Any, kwargs: Any) -> None:
        plain(*args, **kwargs)
        given = inspect.signature(plain).bind(*args, **kwargs).arguments.get("seed")
        drawn = vars(self).get("seed")
        if given or type(drawn) is not int or vars(self).get("_seed_state") != drawn:
            return
        if (journal := _alone(opened)) is not None:
            number, before = journal.seeds.next()
            journal.seeds.put(number, before or drawn)
            self.seed = self._seed_state = before or drawn

    @ending_at_user_line
    def made_tuner(plain: Any, self: Any, args: Any, kwargs: Any) -> None:
        bound = inspect.signature(plain).bind(*args, **kwargs)
        given = bound.arguments.get
        where = str(given("directory") or ".")
        path = Path(where, given("project_name") or "untitled_project")
        journal = None if "://" in where else _alone(opened)
        if journal is None:
            plain(*args, **kwargs)
            return
        with Project(path, journal).entered(overwrite=given("overwrite")) as overwrite:
            bound.arguments["overwrite"] = overwrite
            plain(*bound.args, **bound.kwargs)

    @ending_at_user_line
    def search(plain: Any, self: Any, args: Any, kwargs: Any) -> Any:
        depth = getattr(_searching, "depth", 0)
        _searching.depth = depth + 1
        try:
            return plain(*args, **kwargs)
        except _EndsSearch as ended:
            raise ended.error from ended.error.__cause__
        finally:
            _searching.depth = depth

    wrapt.wrap_function_wrapper(tuner, "search", search)
    if oracle is not None and inspect.signature(tuner).parameters.keys() >= _NEEDED:
        wrapt.wrap_function_wrapper(oracle, "__init__", made_oracle)
        wrapt.wrap_function_wrapper(tuner, "__init__", made_tuner)


@contextlib.contextmanager
def ending_search() -> Iterator[None]:
    """Around a fit: errors of ours end the search that it belongs to, if there is one.

    A trial that diverged has failed, and the search goes on.
    """
    try:
        yield
    except Exception as error:
        ours = bool(error.args) and isinstance(error.args[0], Text)
        searching = getattr(_searching, "depth", 0)
        if not searching or not ours or isinstance(error, DivergedError):
            raise
        raise _EndsSearch(error) from error


def _alone(opened: "Callable[[], Journal | None]") -> "Journal | None":
    """The journal, unless other processes take part in the search."""
    import keras

    if any(os.environ.get(name, "1") != "1" for name in _SEVERAL):
        return None
    return None if keras.distribution.distribution() is not None else opened()
