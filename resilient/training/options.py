"""Checks the arguments that are ours, before anything is done.

Those of ``model.fit`` are checked by Keras.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from resilient.data import DataOptions, OnDataChange
from resilient.errors import message
from resilient.policies import (
    KeepPolicy,
    SaveFreq,
    SavePolicy,
    keep_policy,
    save_policy,
)
from resilient.preemption.options import Preemption, checked_preemption
from resilient.saving.checkpointer import OnSaveError
from resilient.saving.choose import Resume
from resilient.storage.store import Store
from resilient.telemetry.heartbeat import VARIABLE

logger = logging.getLogger(__name__)

OnEvent = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class RunOptions:
    """What a run was asked for, by ``fit`` and ``Run`` alike.

    Attributes:
        store: The checkpoints.
        save_policy: When to save.
        keep: What to keep.
        resume: Which checkpoint to resume from.
        data: What is wanted of the data.
        on_event: Called with each event.
        on_save_error: What to do when a checkpoint could not be written.
        preemption: How training can be asked to stop.
    """

    store: Store
    save_policy: SavePolicy
    keep: KeepPolicy
    resume: Resume
    data: DataOptions
    on_event: OnEvent | None
    on_save_error: OnSaveError
    preemption: Preemption | None

    @classmethod
    def checked(
        cls,
        checkpoint_dir: str | os.PathLike[str],
        *,
        save_freq: SaveFreq,
        keep: int | KeepPolicy,
        resume: Resume,
        on_data_change: OnDataChange,
        replay_data: bool,
        on_event: OnEvent | None,
        on_save_error: OnSaveError,
        preemption: Preemption | None,
    ) -> "RunOptions":
        """The arguments of ``resilient.fit``, if they mean something.

        Raises:
            TypeError: One is of another type than it can be.
            ValueError: One has a value that it cannot have.
        """
        options = cls(
            store=Store(checkpoint_dir),
            save_policy=save_policy(save_freq),
            keep=keep_policy(keep),
            resume=checked_resume(resume),
            data=checked_data(on_data_change, replay_data),
            on_event=checked_on_event(on_event),
            on_save_error=checked_on_save_error(on_save_error),
            preemption=checked_preemption(preemption),
        )
        require_epochs_for_best(save_freq, options.save_policy, options.keep)
        warn_if_restarted(options.resume)
        return options


def checked_resume(resume: Resume) -> Resume:
    """``resume``, if it means something; otherwise ValueError."""
    if isinstance(resume, Integral) and not isinstance(resume, bool) and resume >= 0:
        return int(resume)
    if resume in ("auto", "never", "must") and isinstance(resume, str):
        return resume
    raise ValueError(
        message(
            '`resume` must be "auto", "never", "must" or the step of a checkpoint.',
            received=repr(resume),
        )
    )


def warn_if_restarted(resume: Resume) -> None:
    """Say that a supervisor's restarts would give up progress, each time anew."""
    if VARIABLE in os.environ and resume not in ("auto", "must"):
        logger.warning(
            "With resume=%r every restart by `resilient run` goes back there, and "
            'loses what was trained since. Use resume="auto" with it.',
            resume,
        )


def checked_on_event(function: OnEvent | None) -> OnEvent | None:
    """``on_event``, if it can be called; otherwise TypeError."""
    if function is not None and not callable(function):
        raise TypeError(
            message(
                "`on_event` is called with each event.",
                received=repr(function),
                hint="Pass a function of one argument, a dict.",
            )
        )
    return function


def checked_on_save_error(value: OnSaveError) -> OnSaveError:
    """``on_save_error``, if it means something; otherwise ValueError."""
    if not isinstance(value, str) or value not in ("raise", "warn"):
        raise ValueError(
            message('`on_save_error` must be "raise" or "warn".', received=repr(value))
        )
    return value


def require_epochs_for_best(
    save_freq: object, policy: SavePolicy, keep: KeepPolicy
) -> None:
    """Raise ValueError where there is nothing that ``keep=best(...)`` compares."""
    if keep.monitors and not policy.epochs:
        raise ValueError(
            message(
                "keep=best(...) compares checkpoints of epochs' ends, and this "
                "save_freq makes none.",
                received=f"save_freq={save_freq!r}",
                hint="Add every(epochs=1) to save_freq.",
            )
        )


def checked_data(on_data_change: OnDataChange, replay_data: bool) -> DataOptions:
    """``on_data_change`` and ``replay_data``, if they mean something.

    Raises:
        TypeError: ``replay_data`` is not a bool.
        ValueError: ``on_data_change`` is something else.
    """
    if not isinstance(on_data_change, str) or on_data_change not in ("raise", "warn"):
        raise ValueError(
            message(
                '`on_data_change` must be "raise" or "warn".',
                received=repr(on_data_change),
            )
        )
    if not isinstance(replay_data, bool):
        raise TypeError(
            message("`replay_data` must be True or False.", received=repr(replay_data))
        )
    return DataOptions(on_data_change, replay_data)
