"""All that makes a checkpoint of a run: taken between two batches, and put back.

What a run's state is comes together here; where the data is, and when to take it, is
the attempt's business, and how it is written that of others.
"""

from collections.abc import Mapping
from typing import Any

import keras

from resilient import architecture, random_state, record, state
from resilient.backends.base import Backend, Part
from resilient.callbacks.states import CallbackStates
from resilient.divergence import LossWatch
from resilient.encoding.json_values import encode
from resilient.fingerprint import Facts
from resilient.notices import Notices
from resilient.progress import Progress
from resilient.snapshots import Snapshots
from resilient.stateful import StatefulObjects


class Contents:
    """The state of one fit, once every callback was told that training begins.

    Args:
        model: The compiled model.
        backend: Its backend's adapter.
        callbacks: Those of this fit.
        stateful: The user's own objects, by name.
        facts: What the run is.
        losses: Looks at the loss of each batch.
        part: Which part of a checkpoint this process makes.
    """

    def __init__(
        self,
        model: keras.Model,
        backend: Backend,
        callbacks: CallbackStates,
        stateful: StatefulObjects,
        *,
        facts: Facts,
        losses: LossWatch,
        part: Part,
    ) -> None:
        self.callbacks = callbacks
        self._model, self._backend = model, backend
        self._stateful, self._facts, self._losses = stateful, facts, losses
        self._notices = Notices(model)
        self._snapshots = Snapshots(backend, part)
        self._architecture = architecture.Architecture(model)
        self._architecture.now()  # on JAX the optimizer cannot tell while it trains

    def after_step(self) -> None:
        """A training step was done."""
        self._notices.after_step()

    def take(
        self,
        progress: Progress,
        positions: Mapping[str, Any],
        random: Any,
        *,
        logs: Mapping[str, float] | None,
    ) -> record.Content:
        """Take a snapshot of everything.

        Args:
            progress: Where training is.
            positions: Where the data is.
            random: The random state of this moment.
            logs: Of the last epoch that ended.
        """
        arrays: dict[str, Any] = {}
        encoded = encode(dict(positions), arrays, "data")
        callbacks = self.callbacks.capture(arrays)
        stateful = self._stateful.capture(arrays)
        live = state.leaves(self._model)
        self._notices.at_save(live, self.callbacks.uncaptured())
        run = {
            "progress": progress.to_json(),
            "stop_training": bool(self._model.stop_training),
            "epoch_logs": encode(logs, {}, "logs"),
            "random": random,
            "callbacks": callbacks,
            "stateful": stateful,
            "fingerprint": self._facts.now(),
            "learning_rate": encode(self._facts.learning_rate, {}, "rate"),
            "losses": self._losses.state(),
            architecture.KEY: self._architecture.now(),
        }
        tensors = state.live_tensors(self._model, live)
        return self._snapshots.take(run, encoded, live, tensors, arrays)

    def put_back(self, saved: record.Record, drawn_ahead: set[str | int]) -> None:
        """Set everything, the random state last.

        Args:
            saved: What to set.
            drawn_ahead: Random generators that the data draws from ahead of training.
        """
        live = state.leaves(self._model)
        state.assign(self._backend, saved.run["variables"], live, saved.tensors)
        self.callbacks.restore(saved.run["callbacks"], saved.tensors)
        self._stateful.restore(saved.run["stateful"], saved.tensors)
        self._model.stop_training = bool(saved.run["stop_training"])
        if "losses" in saved.run:  # older checkpoints lack them
            self._losses.restore(saved.run["losses"])
        random, now = saved.run["random"], random_state.capture(self._backend)
        left = random_state.drawn_from(random, now) & drawn_ahead
        self._notices.at_restore(sorted(left))
        random_state.restore(self._backend, random, leave=left)
