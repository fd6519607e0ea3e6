"""The options of ``fit`` and ``Run``, validated before anything is done."""

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

from resilient.convert.start import checked_starts
from resilient.data import DataOptions, OnDataChange
from resilient.errors import message, require_integer, require_number
from resilient.policies import KeepPolicy, SaveFreq, every, keep_policy, save_policy
from resilient.preemption.requests import Preemption, checked_preemption
from resilient.saving.checkpointer import OnSaveError
from resilient.saving.choose import Resume, ResumeFrom
from resilient.serialization.state_dict import Stateful, StatefulObjects
from resilient.storage.remote.options import Upload
from resilient.storage.stores import store_of
from resilient.telemetry.heartbeat import VARIABLE
from resilient.witness import OnInexact

if TYPE_CHECKING:  # it loads Keras
    from resilient.state.comparison import Difference
    from resilient.training.trial import Trial

logger = logging.getLogger(__name__)

Location = str | os.PathLike[str]
OnEvent = Callable[[dict[str, Any]], None]
TRIAL = "RESILIENT_TRIAL"  # set by `resilient prove`
# Frozen: one for all runs.
_PREEMPTION = Preemption()


@dataclass(frozen=True)
class Rollback:
    """Recover from divergence with PaLM's recipe (Chowdhery et al. 2022, section 5.1).

    Training goes back to ``steps`` batches before the bad one, skips the next ``skip``
    batches of the data, and continues. The last batch of an epoch is never skipped.

    Attributes:
        steps: How many batches to go back.
        skip: How many batches to skip from there. It must exceed ``steps``, or the bad
            batch would be trained again.
        limit: How many rollbacks a run may have; at the next one, training stops.

    Raises:
        TypeError: One of them is not an integer.
        ValueError: One is not positive, or ``skip`` not more than ``steps``.
    """

    steps: int = 100
    skip: int = 300
    limit: int = 3

    def __post_init__(self) -> None:
        for name in ("steps", "skip", "limit"):
            checked = require_integer(getattr(self, name), f"Rollback({name}=...)")
            object.__setattr__(self, name, checked)
        if self.skip <= self.steps:
            what = "Rollback(skip=...) must reach beyond the bad batch."
            received = f"skip={self.skip}, steps={self.steps}"
            raise ValueError(
                message(
                    what, received=received, hint="Make `skip` larger than `steps`."
                )
            )


OnNaN = Literal["ignore", "stop", "rollback"] | Rollback


def checked_on_nan(value: OnNaN) -> Literal["ignore", "stop"] | Rollback:
    """``on_nan`` if it is valid; otherwise ValueError."""
    if isinstance(value, Rollback):
        return value
    if isinstance(value, str) and value == "rollback":
        return Rollback()
    if isinstance(value, str) and value in ("ignore", "stop"):
        return value
    raise ValueError(
        message(
            '`on_nan` must be "ignore", "stop", "rollback" or a Rollback(...).',
            received=repr(value),
        )
    )


def checked_loss_spike(value: float | None, on_nan: OnNaN) -> float | None:
    """``loss_spike`` if it is valid; otherwise TypeError or ValueError."""
    if value is None:
        return None
    factor = require_number(value, "loss_spike")
    if factor <= 1:
        what = "`loss_spike` must be a factor above 1."
        raise ValueError(
            message(what, received=value, hint="Use a number such as 5, or None.")
        )
    if on_nan == "ignore":
        what = '`loss_spike` has no effect while on_nan is "ignore".'
        todo = 'Pass on_nan="stop" or on_nan="rollback", too.'
        raise ValueError(
            message(what, received=f"loss_spike={value}, on_nan='ignore'", hint=todo)
        )
    return factor


@dataclass(frozen=True, kw_only=True)
class InDirectory:
    """Where a run is saved.

    Args:
        checkpoint_dir: Directory for this run's checkpoints, created if missing; or an
            address in an object store, such as ``"s3://bucket/run"``.
    """

    checkpoint_dir: Location


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``fit`` and ``Run`` take, as the user gave it.

    Signatures, docstrings, the help of ``resilient run`` and the page of options are
    made from these classes: the names, types, defaults and texts are here only.

    Args:
        local_dir: For an address: a directory on a local disk. A save is complete once
            it is there; the upload runs in the background. None: a temporary directory.
        upload: For an address: what stays in ``local_dir``, and limits for uploads.
        save_freq: When to save: ``"auto"``, ``"epoch"`` or a number of batches; or a
            policy such as ``every(steps=500) | every(minutes=10)``. ``"auto"`` saves at
            the end of each epoch, and in between as often as at most 2 % of the time
            allows (see ``adaptive``). The end of training is always saved. A save that
            falls due during another one is postponed.
        keep: How many checkpoints to keep; or a policy such as
            ``latest(3) | best(1, monitor="val_loss")``.
        resume: ``"auto"`` resumes if there is a checkpoint, ``"must"`` requires one,
            ``"never"`` starts over, a number resumes from that step, and ``"best"``
            resumes from the best checkpoint by the metric that ``keep=best(...)``
            monitors. Checkpoints after that one go to ``quarantine/``.
        start_from: If there is no checkpoint to resume from, start with the weights of
            another run (its directory, or ``DIR/step-...``) or of a file that
            ``import_checkpoint`` can read. Ignored when the run resumes.
        start_layers: Take only weights whose full path (``weight.path``) matches this
            regular expression, such as ``"encoder/.*"``, and whose shape is the same.
            The others keep their values, and are listed. None: all weights, or an
            error.
        allow: Differences from the checkpoint to accept, such as ``"data"``, where a
            resume would otherwise be refused; a set of ``"backend"`` (of Keras),
            ``"batch_size"``, ``"callbacks"``, ``"config"`` (of layers), ``"data"``,
            ``"learning_rate"``, ``"metrics"``, ``"optimizer"`` and ``"stopped"`` (goes
            on where a callback stopped training). A ``NotExactWarning`` says what
            changed, and later checkpoints record it.
        on_data_change: What to do if the data has other content after a resume (a
            batch, or what a tf.data pipeline was given): ``"raise"`` an error, or
            ``"warn"`` and continue with the new data. (To train on a different dataset,
            use ``allow={"data"}``.)
        on_inexact: What to do if the batches between the checkpoint and a kill, which
            are trained again, do not give the same bits: ``"warn"`` once, or
            ``"raise"`` a ``NotExactError`` before anything is saved.
        replay_data: Instead of saving the state of iterators (a large shuffle buffer,
            say), draw all batches again from the start of the epoch or the run.
        keep_compiled: On JAX, keep what is compiled in ``compiled/`` beside the
            checkpoints, so that the next start need not compile it again. These files
            are programs, see the documentation of checkpoint security. Nothing is kept
            if ``RESILIENT_KEY`` is set, nor by several processes that train together,
            and JAX's own ``jax_compilation_cache_dir`` has precedence.
        on_event: Called with each event that ``events.jsonl`` records: a dict with
            ``"event"`` and ``"time"`` (Unix seconds).
        on_save_error: What to do if a checkpoint cannot be written: ``"raise"`` at the
            next batch or at the end of fit, or ``"warn"`` and continue.
        preemption: How training can be asked to save and stop: signals, cloud notices,
            and the grace period. None: only by touching the file ``stop`` in
            ``checkpoint_dir``. (Touching ``save`` there saves without stopping.)
    """

    local_dir: Location | None = None
    upload: Upload | None = None
    save_freq: SaveFreq = "auto"
    keep: int | KeepPolicy = 3
    resume: Resume = "auto"
    start_from: Location | Mapping[str, Location] | None = None
    start_layers: str | None = None
    allow: Collection[str] = ()
    on_data_change: OnDataChange = "raise"
    on_inexact: OnInexact = "warn"
    replay_data: bool = False
    keep_compiled: bool = True
    on_event: OnEvent | None = None
    on_save_error: OnSaveError = "raise"
    preemption: Preemption | None = _PREEMPTION


@dataclass(frozen=True, kw_only=True)
class FitOptions(Options):
    """What ``fit`` takes.

    Args:
        stateful: Your own objects with ``state_dict`` and ``load_state_dict``, by name,
            to be saved and restored with the run.
        on_nan: What to do if the loss is not finite: ``"ignore"`` it, as Keras does;
            ``"stop"`` with a ``DivergedError``, without saving; ``"rollback"`` to go
            back 100 batches, skip the next 300, and continue; or ``Rollback(...)`` with
            other numbers.
        loss_spike: Treat the loss of a batch like NaN if it is more than this many
            times the median of the last 100; needs ``on_nan`` and a positive loss.
    """

    start_from: Location | None = None
    stateful: Mapping[str, Stateful] | None = None
    on_nan: OnNaN = "ignore"
    loss_spike: float | None = None


@dataclass(frozen=True, kw_only=True)
class LoopOptions(Options):
    """What ``Run`` takes.

    Args:
        keep: As in ``fit``; ``best`` compares the last value logged in each epoch.
        allow: Differences from the checkpoint to accept: a set of ``"backend"``,
            ``"batch_size"``, ``"config"``, ``"data"``, ``"metrics"``, ``"optimizer"``,
            ``"stopped"`` (goes on where ``run.stop()`` ended the run).
        start_from: As in ``fit`` if there is one Keras model; for several, a dict that
            maps their names to paths. Not allowed with ``state``.
        data: What ``loop`` and ``batches`` iterate over if they are not given data.
        state: A JAX pytree (parameters, optax state), to use as ``run.state``.
        verbose: 0 prints nothing.
    """

    data: Any = None
    state: Any = None
    verbose: int = 1


class RunOptions:
    """The options of a run, validated.

    Args:
        checkpoint_dir: Where it is saved.
        given: What the user gave.

    Attributes:
        store: The checkpoints.
        save_policy: When to save.
        keep: What to keep.
        resume: Which checkpoint to resume from.
        data: Options for the data.
        keep_compiled: Whether the next start may load what was compiled.
        on_event: Called with each event.
        on_inexact: What to do if training does not repeat.
        on_save_error: What to do if a checkpoint cannot be written.
        preemption: How training can be asked to stop.
        allow: Which differences from the checkpoint to accept.
        trial: What ``resilient prove`` asks of this process, if it does.

    Raises:
        TypeError: One has the wrong type.
        ValueError: One has an invalid value.
    """

    def __init__(self, checkpoint_dir: Location, given: Options) -> None:
        for name in ("on_data_change", "on_inexact", "on_save_error"):
            require_one_of(name, getattr(given, name), "raise", "warn")
        for name in ("replay_data", "keep_compiled"):
            if not isinstance(value := getattr(given, name), bool):
                what = f"`{name}` must be True or False."
                raise TypeError(message(what, received=repr(value)))
        if given.on_event is not None and not callable(given.on_event):
            what = "`on_event` must be callable: it receives each event, a dict."
            raise TypeError(message(what, received=repr(given.on_event)))
        self.on_inexact = given.on_inexact
        self.keep_compiled = given.keep_compiled
        self.on_event, self.on_save_error = given.on_event, given.on_save_error
        self.save_policy = save_policy(given.save_freq)
        self.keep = keep_policy(given.keep)
        self.trial: Trial | None = None
        if TRIAL in os.environ:
            from resilient.training import trial

            self.trial = trial.Trial.asked()
            if self.trial.save_steps:
                self.save_policy |= every(steps=self.trial.save_steps)
        self.store = store_of(checkpoint_dir, given.local_dir, given.upload)
        self.resume = _checked_resume(given.resume, self.keep)
        self.preemption = checked_preemption(given.preemption)
        names = OF_LOOPS if isinstance(given, LoopOptions) else NAMES
        self.allow = checked_allow(given.allow, names)
        on_change: OnDataChange = (
            "warn" if "data" in self.allow else given.on_data_change
        )
        self.data = DataOptions(on_change, given.replay_data)
        if self.keep.monitors and not self.save_policy.epochs:
            raise ValueError(
                message(
                    "keep=best(...) compares checkpoints at the ends of epochs, but "
                    "this save_freq saves none there.",
                    received=f"save_freq={given.save_freq!r}",
                    hint="Add every(epochs=1) to save_freq.",
                )
            )
        if VARIABLE in os.environ and self.resume not in ("auto", "must"):
            logger.warning(
                "With resume=%r, every restart by `resilient run` goes back to that "
                'point and loses what was trained since. Use resume="auto" under '
                "`resilient run`.",
                given.resume,
            )


class RunOptionsOfFit(RunOptions):
    """The options of a fit, validated.

    Attributes:
        starts: The weights to start with if it does not resume.
        stateful: The user's own objects.
        on_nan: What to do when the loss is bad.
        loss_spike: See ``rollback.LossWatch``.
    """

    def __init__(self, checkpoint_dir: Location, given: FitOptions) -> None:
        super().__init__(checkpoint_dir, given)
        self.starts = checked_starts(given.start_from, given.start_layers)
        self.stateful = StatefulObjects(given.stateful)
        self.on_nan = checked_on_nan(given.on_nan)
        self.loss_spike = checked_loss_spike(given.loss_spike, given.on_nan)
        if isinstance(self.on_nan, Rollback):
            self.keep |= KeepPolicy(back=self.on_nan.steps)


def require_one_of(name: str, value: object, *allowed: str) -> None:
    """Raise ValueError unless an argument is one of these words."""
    if not isinstance(value, str) or value not in allowed:
        words = " or ".join(f'"{word}"' for word in allowed)
        raise ValueError(message(f"`{name}` must be {words}.", received=repr(value)))


def _checked_resume(resume: Resume, keep: KeepPolicy) -> ResumeFrom:
    if isinstance(resume, Integral) and resume >= 0 and not isinstance(resume, bool):
        return int(resume)
    if resume in ("auto", "never", "must") and isinstance(resume, str):
        return resume
    if resume == "best":
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
    raise ValueError(
        message(
            '`resume` must be "auto", "best", "never", "must" or the step of a '
            "checkpoint.",
            received=repr(resume),
        )
    )


# Which value wins where each differs, and from where on.
WINS = {
    "backend": "all Keras variables are restored; arithmetic, and random numbers that "
    "backends draw themselves, differ from here on",
    "batch_size": "this script's is used from here on; an epoch continues after the "
    "samples already trained",
    "callbacks": "the state of those that match by class and order is restored, the "
    "others start fresh",
    "config": "this script's layers continue with the checkpoint's weights",
    "data": "this script's is used from here on; within an epoch, after as many "
    "samples as were already trained",
    "learning_rate": "this script's is used from here on",
    "metrics": "they start fresh",
    "optimizer": "it starts fresh; the model keeps the checkpoint's weights",
    "stopped": "training goes on, with callbacks as they were",
}
NAMES = tuple(WINS)
# A loop has no callbacks, and keeps its learning rate wherever it likes.
OF_LOOPS = tuple(name for name in NAMES if name not in ("callbacks", "learning_rate"))


def checked_allow(allow: Collection[str], names: Sequence[str]) -> frozenset[str]:
    """The allowed differences, if all names are valid.

    Args:
        allow: What the user gave.
        names: Those of fits, or of loops.

    Raises:
        TypeError: It is not a set of names.
        ValueError: A name does not exist, or not here.
    """
    if isinstance(allow, str) or not isinstance(allow, Collection):
        what = "`allow` must be a set of names."
        hint = 'For example allow={"data"}.'
        raise TypeError(message(what, received=repr(allow), hint=hint))
    for name in set(allow).difference(names):
        what = "`allow` has a name that is unknown here."
        hint = f"Use one of: {', '.join(names)}."
        raise ValueError(message(what, received=repr(name), hint=hint))
    return frozenset(allow)


def allowing(differences: Sequence["Difference"]) -> str:
    """How to accept these differences, as a hint; empty if that is impossible."""
    names = dict.fromkeys(each.of for each in differences)
    if not names or not all(name in NAMES for name in names):
        return ""
    listed = ", ".join(f'"{name}"' for name in names)
    return (
        f" Or pass allow={{{listed}}} to continue with the change, though no longer "
        "exactly."
    )
