"""What a fit was asked for: what trains the model, and what to do if it diverges."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import keras

from resilient.convert.start import StartFrom
from resilient.serialization.state_dict import StatefulObjects
from resilient.training.divergence.options import Rollback
from resilient.training.session import Session


@dataclass(frozen=True)
class FitPlan:
    """A fit that is about to run.

    Attributes:
        session: The processes, the events and the saves.
        model: The compiled model.
        fit: The model's ``fit``: Keras's, or the user's override.
        stateful: The user's own objects.
        on_nan: What to do when the loss is bad.
        loss_spike: See ``divergence.LossWatch``.
        start_from: The weights to start with if it does not resume.
    """

    session: Session
    model: keras.Model
    fit: Callable[..., keras.callbacks.History]
    stateful: StatefulObjects
    on_nan: Literal["ignore", "stop"] | Rollback
    loss_spike: float | None
    start_from: StartFrom | None

    @property
    def starts(self) -> list[tuple[StartFrom, keras.Model, str]]:
        """The weights to start with, as ``convert.start`` takes them."""
        asked = self.start_from
        return [] if asked is None else [(asked, self.model, "")]

    @property
    def explicit(self) -> bool:
        """Whether the script calls ``resilient.fit`` itself, not ``enabled``."""
        return bool(self.fit == self.model.fit)
