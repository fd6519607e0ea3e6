"""The parameters of ``fit`` and ``ResilientFit``, as dataclasses that declare them.

Keras's own are spelled out. A call passes on only what its caller gave: a model's own
``fit`` may have other defaults and fewer or more parameters, and those it adds are
passed on too. So nothing makes these classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from resilient.training.options import FitOptions, InDirectory

if TYPE_CHECKING:
    import keras
    from keras.callbacks import Callback, CallbackList

# Parameters of `fit` that are ours.
OPTIONS = frozenset(each.name for each in (*fields(InDirectory), *fields(FitOptions)))


@dataclass(frozen=True)
class OfModel:
    """The model to train."""

    model: "keras.Model"


@dataclass(frozen=True)
class KerasArguments:
    """What Keras's ``Model.fit`` takes."""

    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: int | Literal["auto"] = "auto"
    callbacks: "Sequence[Callback] | CallbackList | None" = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: bool | Literal["batch"] = True
    class_weight: Mapping[int, float] | None = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: int | Sequence[int] = 1


@dataclass(frozen=True)
class OfResilientFit(OfModel, FitOptions, InDirectory):
    """What ``ResilientFit`` takes."""


@dataclass(frozen=True)
class OfFit(KerasArguments, OfResilientFit):
    """What ``fit`` takes."""
