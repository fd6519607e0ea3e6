"""Validates the arguments that ``fit`` and ``Run`` share, before anything is done."""

import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from resilient.data import DataOptions, OnDataChange
from resilient.errors import message, require_integer
from resilient.policies import (
    KeepPolicy,
    SaveFreq,
    SavePolicy,
    keep_policy,
    save_policy,
)
from resilient.policies.keep import Best
from resilient.preemption.options import Preemption, checked_preemption
from resilient.saving.checkpointer import OnSaveError
from resilient.saving.choose import Resume, ResumeFrom
from resilient.storage.remote.options import Upload
from resilient.storage.store import Store
from resilient.storage.stores import store_of
from resilient.telemetry.heartbeat import VARIABLE
from resilient.training import trial
from resilient.training.allowed import checked_allow

logger = logging.getLogger(__name__)

OnEvent = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class RunOptions:
    """The validated arguments of ``fit`` or ``Run``.

    Attributes:
        store: The checkpoints.
        save_policy: When to save.
        keep: What to keep.
        resume: Which checkpoint to resume from.
        data: Options for the data.
        on_event: Called with each event.
        on_save_error: What to do if a checkpoint cannot be written.
        preemption: How training can be asked to stop.
        allow: Which differences from the checkpoint to accept.
        digest_every: Steps between two digests of the state; None: no digests.
    """

    store: Store
    save_policy: SavePolicy
    keep: KeepPolicy
    resume: ResumeFrom
    data: DataOptions
    on_event: OnEvent | None
    on_save_error: OnSaveError
    preemption: Preemption | None
    allow: frozenset[str]
    digest_every: int | None

    @classmethod
    def checked(
        cls,
        checkpoint_dir: str | os.PathLike[str],
        *,
        local_dir: str | os.PathLike[str] | None,
        upload: Upload | None,
        save_freq: SaveFreq,
        keep: int | KeepPolicy,
        resume: Resume,
        on_data_change: OnDataChange,
        replay_data: bool,
        on_event: OnEvent | None,
        on_save_error: OnSaveError,
        preemption: Preemption | None,
        allow: Collection[str] = (),
        digest_every: int | None = None,
    ) -> "RunOptions":
        """The arguments of ``resilient.fit``, if they are valid.

        Raises:
            TypeError: One has the wrong type.
            ValueError: One has an invalid value.
        """
        require_one_of("on_data_change", on_data_change, "raise", "warn")
        require_one_of("on_save_error", on_save_error, "raise", "warn")
        if not isinstance(replay_data, bool):
            what = "`replay_data` must be True or False."
            raise TypeError(message(what, received=repr(replay_data)))
        if on_event is not None and not callable(on_event):
            what = "`on_event` must be callable: it receives each event, a dict."
            raise TypeError(message(what, received=repr(on_event)))
        if digest_every is not None:
            digest_every = require_integer(
                digest_every, "`digest_every`", or_else=", or None"
            )
        saving, policy = save_policy(save_freq), keep_policy(keep)
        if (asked := trial.current()) is not None:
            asked.say()
            saving, digest_every = asked.saving(saving), asked.digest_every
        options = cls(
            store=store_of(checkpoint_dir, local_dir, upload),
            save_policy=saving,
            keep=policy,
            resume=_checked_resume(resume, policy),
            data=DataOptions(
                "warn" if "data" in allow else on_data_change, replay_data
            ),
            on_event=on_event,
            on_save_error=on_save_error,
            preemption=checked_preemption(preemption),
            allow=checked_allow(allow),
            digest_every=digest_every,
        )
        options._require_epochs_for_best(save_freq)
        options._warn_if_restarted(resume)
        return options

    def _require_epochs_for_best(self, save_freq: object) -> None:
        """Raise ValueError if no save has metrics for ``keep=best(...)``."""
        if self.keep.monitors and not self.save_policy.epochs:
            raise ValueError(
                message(
                    "keep=best(...) compares checkpoints at the ends of epochs, but "
                    "this save_freq saves none there.",
                    received=f"save_freq={save_freq!r}",
                    hint="Add every(epochs=1) to save_freq.",
                )
            )

    def _warn_if_restarted(self, resume: Resume) -> None:
        """Warn that every restart by a supervisor would lose progress."""
        if VARIABLE in os.environ and self.resume not in ("auto", "must"):
            logger.warning(
                "With resume=%r, every restart by `resilient run` goes back to that "
                'point and loses what was trained since. Use resume="auto" under '
                "`resilient run`.",
                resume,
            )


def require_one_of(name: str, value: object, *allowed: str) -> None:
    """Raise ValueError unless an argument is one of these words."""
    if not isinstance(value, str) or value not in allowed:
        words = " or ".join(f'"{word}"' for word in allowed)
        raise ValueError(message(f"`{name}` must be {words}.", received=repr(value)))


def _checked_resume(resume: Resume, keep: KeepPolicy) -> ResumeFrom:
    if isinstance(resume, bool):
        hint = 'Use "auto" (resume if there is a checkpoint) or "must".'
        hint = hint if resume else 'Use "never" to start from scratch.'
        raise ValueError(message(f"resume={resume} is not accepted.", hint=hint))
    if isinstance(resume, Integral) and resume >= 0:
        return int(resume)
    if resume == "best":
        return _only_best(keep)
    if resume in ("auto", "never", "must") and isinstance(resume, str):
        return resume
    raise ValueError(
        message(
            '`resume` must be "auto", "best", "never", "must" or the step of a '
            "checkpoint.",
            received=repr(resume),
        )
    )


def _only_best(keep: KeepPolicy) -> Best:
    """The metric for ``resume="best"``."""
    by = {(best.monitor, best.mode): best for best in keep.bests}
    if len(by) == 1:
        return keep.bests[0]
    raise ValueError(
        message(
            'resume="best" uses the metric that keep=best(...) monitors, '
            + ("but `keep` has none." if not by else "but there are several."),
            received=f"keep={keep!r}" if not by else ", ".join(map(repr, by)),
            hint='Pass one, such as keep=best(1, monitor="val_loss") | latest(3).',
        )
    )
