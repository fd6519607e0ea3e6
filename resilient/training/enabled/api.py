"""``resilient.enabled`` and ``resilient.disabled``.

Neither importing this module nor entering one of them loads Keras or a backend, so a
script may still choose its backend inside.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resilient.storage.remote.address import Address
from resilient.training.enabled import intercept
from resilient.training.enabled.calls import Calls, ended
from resilient.training.options import FitOptions, Location
from resilient.training.shown import shown_as
from resilient.user_line import ending_at_user_line

# What `resilient run --save` tells the processes that it starts.
VARIABLE = "RESILIENT_SAVE"


@dataclass(frozen=True)
class OfEnabled(FitOptions):
    """What ``enabled`` takes."""

    directory: Location


@shown_as(OfEnabled)
@contextlib.contextmanager
def enabled(directory: Location, **options: Any) -> Iterator[None]:
    """Make every ``model.fit`` inside the block resumable, whoever calls it.

    Each call gets its own checkpoint directory in ``directory``, numbered in the order
    of the calls and named after the model. When the program runs again, calls that
    finished return at once, with their History, weights, optimizer and random state;
    the interrupted one continues where it was.

    The program must make its calls in the same order each time. An explicit
    ``resilient.fit`` keeps its own directory. A ``fit`` inside a callback of another
    fit, or inside a ``Run`` loop, belongs to that one and is not changed.

    Args:
        directory: Created if missing; or an address, like ``checkpoint_dir`` of
            ``fit``.
        **options: Options of ``resilient.fit`` for each call, except
            ``checkpoint_dir`` and ``resume``.

    Raises:
        TypeError: An option is unknown, or has the wrong type.
        ValueError: An option has an invalid value.
    """
    with ending_at_user_line:
        calls = Calls(directory, options)
    with contextlib.closing(calls), intercept.entered(calls):
        yield
    ended.add(calls.directory)


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Exclude the calls of ``model.fit`` inside from ``enabled`` and its numbering."""
    with intercept.entered(None):
        yield


def environment(directory: Location, options: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables that enable every fit of a process and of those it starts.

    Args:
        directory: As for ``enabled``.
        options: Numbers and strings.
    """
    Calls(directory, options)  # refuse bad options now, while somebody is watching
    startup = os.path.join(os.path.dirname(__file__), "startup")
    paths = [startup, os.environ.get("PYTHONPATH")]
    where = Address.of(directory) or os.path.abspath(directory)
    said = {"directory": str(where), **options}
    return {
        VARIABLE: json.dumps(said),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def enable_from_environment() -> None:
    """``enabled`` as the environment says, until the process ends."""
    options = json.loads(os.environ[VARIABLE])
    intercept.add(Calls(options.pop("directory"), options))
