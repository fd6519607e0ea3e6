"""Says, once each, what a resume of this run will not reproduce bit for bit."""

import keras

from resilient.errors import WarnOnce
from resilient.graph_random import stateful_random_operations
from resilient.python_state import PythonState, parts_of
from resilient.state import Leaf, leaves

DRAWN_AHEAD = (
    "the data draws from these global random generators ahead of training; if anything "
    "else does, too, it will draw other numbers (give the data a generator of its own, "
    "such as numpy.random.default_rng(seed))"
)
CHANGED = (
    "these attributes changed while training; they are no variables, so they will be "
    "as new after a resume (keep what has to last in {})"
)


class Notices:
    """The warnings of one attempt.

    Args:
        model: The model that is about to train.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._python_state = PythonState(parts_of(model))
        self._say = WarnOnce()
        self._layout: list[str] | None = None  # of the variables, after the first step

    def at_restore(self, left: list[str]) -> None:
        """When the random state was set.

        Args:
            left: Global random generators that go on where the data left them.
        """
        self._say(DRAWN_AHEAD, left)

    def after_step(self) -> None:
        """After the first step, when TensorFlow has traced it."""
        if self._layout is not None:
            return
        self._layout = _layout(leaves(self._model))
        self._say(
            "these operations of the training step keep random state where no "
            "checkpoint can reach it, and start over after a resume (draw with "
            "keras.random and a SeedGenerator instead)",
            stateful_random_operations(self._model),
        )

    def at_save(self, live: list[Leaf], uncaptured: list[str]) -> None:
        """When a checkpoint is about to be made.

        Args:
            live: The model's state.
            uncaptured: Attributes of callbacks that the checkpoint does not hold.
        """
        self._say(
            "these attributes of callbacks cannot be captured and will be as new after "
            "a resume (give the callback state_dict and load_state_dict to keep them)",
            uncaptured,
        )
        self._say(
            CHANGED.format("a keras.Variable, in a callback or in `stateful`"),
            self._python_state.changed(),
        )
        if _layout(live) != self._layout:
            self._say(
                "the model was frozen, unfrozen or compiled in the middle of training, "
                "which a resume cannot follow and will refuse (do that between two "
                "fits, each with its own checkpoint_dir)",
                [type(self._model).__name__],
            )


def _layout(live: list[Leaf]) -> list[str]:
    """Freezing a layer moves its variables to another group, which the names tell."""
    return [leaf.name for leaf in live]
