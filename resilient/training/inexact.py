"""Warns, once each, about what a resume of this run will not reproduce bit for bit."""

from collections import defaultdict
from collections.abc import Collection

from resilient.errors import WarnOnce
from resilient.objects.training_setup.changes import changes
from resilient.serialization import JSON


class InexactWarnings:
    """The warnings of one attempt; each takes the names concerned."""

    def __init__(self) -> None:
        self._say = WarnOnce()
        self._told: dict[str, set[str]] = defaultdict(set)  # changes reported, by model

    def drawn_ahead(self, generators: Collection[str]) -> None:
        """Global random generators that continue where the data left them."""
        self._say(
            "the data draws from these global random generators ahead of training, "
            "so anything else that uses them will draw different numbers after a "
            "resume (give the data its own generator, such as "
            "numpy.random.default_rng(seed))",
            list(generators),
        )

    def attributes(self, names: Collection[str], keep_in: str) -> None:
        """Attributes that a resume resets; ``keep_in`` says where to keep them."""
        self._say(
            "these attributes changed during training but are not variables, so a "
            f"resume resets them (keep what must last in {keep_in})",
            list(names),
        )

    def callbacks(self, attributes: Collection[str]) -> None:
        """Attributes of callbacks that a checkpoint does not hold."""
        self._say(
            "these attributes of callbacks cannot be saved, so a resume resets them "
            "(give the callback state_dict() and load_state_dict() to keep them, or "
            "put your classes into keras.saving.get_custom_objects())",
            list(attributes),
        )

    def operations(self, names: Collection[str]) -> None:
        """TensorFlow random operations that keep their state in the kernel."""
        self._say(
            "these operations in traced functions keep random state that no "
            "checkpoint can reach, so they start over after a resume (draw with "
            "keras.random and a SeedGenerator instead)",
            list(names),
        )

    def changed(self, model: str, setup: JSON, *, do_it: str) -> None:
        """A model's training setup that changed in the middle of training.

        Args:
            model: Prefix of each line, which names the model.
            setup: What ``TrainingSetup.to_json`` returned.
            do_it: When to change it instead.
        """
        lines = changes(setup, but=self._told[model])
        self._told[model].update(setup.get("now", {}))
        self._say(
            "a model was changed in the middle of training, so a resume will be "
            f"refused (make such changes {do_it})",
            [model + line for line in lines],
        )
