"""Says, once each, what a resume of this run will not reproduce bit for bit."""

from collections.abc import Iterable

import keras

from resilient.errors import WarnOnce
from resilient.objects.makeup import makeup
from resilient.serialization import JSON
from resilient.state.rng_ops import stateful_random_operations

DRAWN_AHEAD = (
    "the data draws from these global random generators ahead of training; if anything "
    "else does, too, it will draw other numbers (give the data a generator of its own, "
    "such as numpy.random.default_rng(seed))"
)
CHANGED = (
    "these attributes changed while training; they are no variables, so they will be "
    "as new after a resume (keep what has to last in {})"
)


class InexactWarnings:
    """The warnings of one attempt.

    Args:
        model: The model that is about to train.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._say = WarnOnce()
        self._told: set[str] = set()  # what changed, and was said to have
        self._looked = False  # at the step, once it is traced

    def at_restore(self, left: list[str]) -> None:
        """When the random state was set.

        Args:
            left: Global random generators that go on where the data left them.
        """
        self._say(DRAWN_AHEAD, left)

    def lost(self, attributes: Iterable[str]) -> None:
        """Tell of attributes of the model and its parts that a resume does not set."""
        self._say(
            CHANGED.format("a keras.Variable, in a callback or in `stateful`"),
            list(attributes),
        )

    def after_step(self) -> None:
        """After the first step, when TensorFlow has traced it."""
        if self._looked:
            return
        self._looked = True
        self._say(
            "these operations of the training step keep random state where no "
            "checkpoint can reach it, and start over after a resume (draw with "
            "keras.random and a SeedGenerator instead)",
            stateful_random_operations(self._model),
        )

    def at_save(
        self, uncaptured: list[str], attributes: Iterable[str], changed: JSON
    ) -> None:
        """When a checkpoint is about to be made.

        Args:
            uncaptured: Attributes of callbacks that the checkpoint does not hold.
            attributes: Those of the model and its parts, likewise.
            changed: What ``Makeup.to_json`` returned.
        """
        self._say(
            "these attributes of callbacks cannot be captured and will be as new after "
            "a resume (give the callback state_dict and load_state_dict to keep them)",
            uncaptured,
        )
        self.lost(attributes)
        lines = makeup.changes(changed, but=self._told)
        self._told.update(changed.get("now", {}))
        self._say(
            "the model was changed in the middle of training, which a resume cannot "
            "follow and will refuse (do that between two fits, each with its own "
            "checkpoint_dir, or before the first batch of every attempt)",
            lines,
        )
