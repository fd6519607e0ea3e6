"""What a fit was asked for: who trains the model, and what if it diverges."""

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
        fit: Keras's ``fit`` of it, or what the user made of that.
        stateful: The user's own objects.
        on_nan: What to do when the loss is bad.
        loss_spike: See ``divergence.LossWatch``.
        start_from: The weights that it begins with where it does not resume.
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
        """What ``convert.start`` takes."""
        asked = self.start_from
        return [] if asked is None else [(asked, self.model, "")]

    @property
    def explicit(self) -> bool:
        """Whether the script calls ``resilient.fit``, and not ``enabled`` for it."""
        return bool(self.fit == self.model.fit)
