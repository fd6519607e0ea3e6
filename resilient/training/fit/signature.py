"""The signature of ``fit``, as editors, type checkers and ``help`` see it.

Keras's own parameters are spelled out for them. A call passes on only what its caller
gave: a model's own ``fit`` may have other defaults and fewer or more parameters, and
those it adds are passed on too. So the functions declared here are never called.
"""

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from resilient.data import OnDataChange
from resilient.policies import KeepPolicy, SaveFreq
from resilient.preemption.options import Preemption
from resilient.saving.checkpointer import OnSaveError
from resilient.saving.choose import Resume
from resilient.serialization.state_dict import Stateful
from resilient.storage.remote.options import Upload
from resilient.training.divergence.options import OnNaN
from resilient.training.options import OnEvent

if TYPE_CHECKING:
    import keras
    from keras.callbacks import Callback, CallbackList

P = ParamSpec("P")
R = TypeVar("R")

# Frozen: one for all fits.
PREEMPTION = Preemption()


def shown_as(declared: Callable[P, R]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the signature of another function."""

    def show(function: Callable[..., R]) -> Callable[P, R]:
        vars(function)["__signature__"] = inspect.signature(declared)
        return function

    return show


def fit(  # noqa: PLR0917  # as in Keras
    model: "keras.Model",
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | Literal["auto"] = "auto",
    callbacks: "Sequence[Callback] | CallbackList | None" = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | Literal["batch"] = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    *,
    checkpoint_dir: str | os.PathLike[str],
    local_dir: str | os.PathLike[str] | None = None,
    upload: Upload | None = None,
    save_freq: SaveFreq = "auto",
    keep: int | KeepPolicy = 3,
    resume: Resume = "auto",
    start_from: str | os.PathLike[str] | None = None,
    start_layers: str | None = None,
    stateful: Mapping[str, Stateful] | None = None,
    allow: Collection[str] = (),
    on_data_change: OnDataChange = "raise",
    replay_data: bool = False,
    digest_every: int | None = None,
    on_event: OnEvent | None = None,
    on_save_error: OnSaveError = "raise",
    preemption: Preemption | None = PREEMPTION,
    on_nan: OnNaN = "ignore",
    loss_spike: float | None = None,
) -> "keras.callbacks.History":
    """Declare ``resilient.fit``: Keras's parameters, then those of ``ResilientFit``."""
    raise NotImplementedError


def keras_fit(  # noqa: PLR0917  # as in Keras
    self: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | Literal["auto"] = "auto",
    callbacks: "Sequence[Callback] | CallbackList | None" = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | Literal["batch"] = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
) -> "keras.callbacks.History":
    """Declare ``ResilientFit.fit``, which takes what Keras's ``Model.fit`` takes."""
    raise NotImplementedError


# Parameters of `fit` that are ours.
OPTIONS = frozenset(
    name
    for name, parameter in inspect.signature(fit).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)
