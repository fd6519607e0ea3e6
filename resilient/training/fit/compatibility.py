"""Whether a checkpoint belongs to this run: looked at before anything is touched.

What makes an exact resume impossible raises, with all differences listed. What may be
wanted warns, and the script's value wins; of the learning rate the checkpoint's wins,
since it is part of the optimizer's state.
"""

import logging

import keras

from resilient.errors import CheckpointMismatchError, warn_not_exact
from resilient.objects.makeup.makeup import Makeup, changes
from resilient.saving.run_json import FitRun
from resilient.serialization import JSON
from resilient.serialization.json_values import decode
from resilient.state import fingerprint, variables
from resilient.state.build import is_built
from resilient.storage.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


# Unknown until the model is built: its layers may come into being then.
_OF_LAYERS = ("layers", "dtype policies")


class CompatibilityCheck:
    """A checkpoint's run beside this one.

    Args:
        checkpoint: The checkpoint.
        run: Its ``run.json``.
        facts: The fingerprint of this run, up to date whenever it is asked for.
        makeup: What the model trains with.
        model: The model that is about to train.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        run: FitRun,
        facts: fingerprint.RunFingerprint,
        makeup: Makeup,
        model: keras.Model,
    ) -> None:
        self._path = checkpoint.path
        self._run = run
        self._facts = facts
        self._makeup = makeup
        self._model = model
        self._built = is_built(model)

    def check_before_build(self, others: list[str]) -> None:
        """Before any callback was told anything.

        Args:
            others: Differences that were found elsewhere.

        Raises:
            CheckpointMismatchError: There are differences.
        """
        found = self._identity(() if self._built else _OF_LAYERS) + others
        found += changes(self._run.makeup)
        if self._built and not found:
            live = variables.leaves(self._model)
            found = variables.weight_differences(self._run.variables, live)
        self._require(found)
        if self._built:
            self._warn()
        self._say_learning_rate()

    def check_after_build(self) -> None:
        """When the model, its optimizer and its metrics are built.

        Raises:
            CheckpointMismatchError: There are differences.
        """
        self._makeup.built()
        found = [] if self._built else self._identity()
        live = variables.leaves(self._model)
        self._require(found + variables.differences(self._run.variables, live))
        if not self._built:
            self._warn()

    def last(self, but: set[str]) -> None:
        """Just before the checkpoint is put into the model.

        Args:
            but: Names of attributes that are put back, too.

        Raises:
            CheckpointMismatchError: There are differences.
        """
        found = self._makeup.differences(self._run.makeup, but)
        self._require(found, "Nothing of the model")

    def _identity(self, unknown: tuple[str, ...] = ()) -> list[str]:
        saved, live = self._run.fingerprint, self._facts.current()
        return fingerprint.identity_differences(saved, live, but=unknown)

    def _require(self, differences: list[str], untouched: str = "Nothing") -> None:
        if differences:
            raise CheckpointMismatchError(
                f"{self._path} belongs to another run: it cannot be "
                f"resumed exactly. {untouched} was changed.",
                received="\n  " + "\n  ".join(differences),
                hint="Make the script what it was, or use another checkpoint_dir, or "
                'pass resume="never" to start anew. (What a callback changes in '
                "the middle of training cannot be followed: another optimizer, "
                "loss or metric, layers that are frozen. Do that between two fits, "
                "or before the first batch of every attempt.)",
            )

    def _warn(self) -> None:
        saved, live = self._run.fingerprint, self._facts.current()
        changed = fingerprint.settings_differences(saved, live)
        if changed:
            warn_not_exact(
                "these settings changed since the checkpoint; training goes on with "
                "this script's",
                changed,
            )

    def _say_learning_rate(self) -> None:
        saved = decode(self._run.learning_rate, {})
        live = self._facts.learning_rate
        if saved is not None and live is not None and saved != live:
            logger.warning(
                "The script's learning rate changed from %g to %g. The checkpoint's "
                "current rate is used: it is part of the optimizer's state.",
                saved,
                live,
            )


def changed_before_a_step(before: JSON, now: JSON) -> CheckpointMismatchError:
    """The error where a resumed step would be traced with what was changed just now.

    Args:
        before: What the model trained with when the checkpoint was put back.
        now: The same before the first batch.
    """
    found = fingerprint.differences(before, now)
    return CheckpointMismatchError(
        "A callback changed the model when the resumed epoch began. The training "
        "step would be made with that; the one that was interrupted was made "
        "before.",
        received="\n  " + "\n  ".join(found),
        hint="Change it in on_train_begin, in every attempt; or between two fits, each "
        "with its own checkpoint_dir.",
    )
