"""The state of a loop: captured between two batches, and restored."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from resilient import keras_internals
from resilient.backends import determinism
from resilient.backends.base import Backend, Part
from resilient.convert.start import Starts
from resilient.data.inputs import DataInputs
from resilient.distributed.checks import require_same_values
from resilient.distributed.group import Group
from resilient.errors import NotSupportedError
from resilient.keras_internals import traces
from resilient.objects.adapters import Objects
from resilient.objects.changes import changes as find_changes
from resilient.objects.tree import Scope, Tree
from resilient.progress import Progress
from resilient.saving.record import Loaded, SavedState, of_kind
from resilient.saving.run_json import Counting, LoopRun
from resilient.saving.snapshot import Snapshot
from resilient.serialization import JSON
from resilient.serialization.json_values import decode, encode
from resilient.state import comparison, fingerprint, rng, variables
from resilient.state.comparison import Difference
from resilient.training.loop.api import wrong_place_error
from resilient.training.loop.history import LogHistory
from resilient.training.options import RunOptions
from resilient.training.resume import Changes, Restorable, Resume
from resilient.training.state import CHANGED, OPERATIONS, RESET, RunState

if TYPE_CHECKING:
    from resilient.training.loop.attempt import LoopAttempt

_VERSIONS = ("keras: ", "python: ")  # which the run says, not each of its models


@dataclass
class LoopPlan:
    """A run of loops, and where it is. It outlives a single loop.

    Attributes:
        options: The arguments of the run.
        objects: The objects passed by name.
        history: What the loop logs.
        verbose: Whether to print what happens.
        starts: Initial weights by model name, for a run that does not resume.
        progress: Where the loop is.
        resume: The checkpoint to restore when its loop begins.
        entered: Whether this process has looked for one.
        inside: Whether a loop has begun and not ended by itself.
        done: Epochs of the loops that have ended in this process.
        stopped: Whether the loop itself ended the run.
        counting: How the run counts its steps.
        changes: Differences from the checkpoint that this process accepts.
        attempt: What follows the loop, while the directory is locked.
    """

    options: RunOptions
    objects: Objects
    history: LogHistory
    verbose: int
    starts: Starts
    progress: Progress = field(default=Progress(0, 0, 0))
    resume: Resume[LoopRun] | None = None
    entered: bool = False
    inside: bool = False
    done: int = -1
    stopped: bool = False
    counting: Counting | None = None
    changes: Changes | None = None
    attempt: "LoopAttempt | None" = None

    def resume_from(self, found: Loaded) -> Resume[LoopRun]:
        """Continue from a checkpoint."""
        self.resume = Resume(*of_kind(found, LoopRun), self.options.allow)
        self.changes = self.resume.changes
        return self.resume

    @property
    def is_alike(self) -> bool:
        """Whether it continues from a checkpoint, and nothing differs from its run."""
        return self.changes is not None and not self.changes.found

    def count_by(self, counting: Counting) -> None:
        """Count steps in this way only: a resume could not follow a mixture.

        Raises:
            ResilientError: The run counts them in a different way.
        """
        if self.counting not in (None, counting):
            raise wrong_place_error(
                counting, f"This run already counts its steps with {self.counting}."
            )
        self.counting = counting

    def is_over(self, epochs: int) -> bool:
        """Whether a loop of this many epochs is complete."""
        return self.stopped or self.progress.epoch >= epochs

    def ends(self, epochs: int) -> bool:
        """Whether the run is exactly at the end of a loop of this many epochs."""
        return (self.progress.epoch, self.progress.batch) == (epochs, 0)


class LoopState(RunState):
    """The state of a loop.

    Args:
        plan: The run.
        backend: The backend's adapter.
        part: Which part of a checkpoint this process writes.
        group: The processes that train.

    Attributes:
        data: Facts about the data; None if the loop draws it itself.
    """

    def __init__(
        self, plan: LoopPlan, backend: Backend, part: Part, group: Group
    ) -> None:
        super().__init__(backend, part)
        self._plan, self._objects, self._group = plan, plan.objects, group
        # On PyTorch, only the loop itself keeps processes in step.
        self._alike = group.count == 1 or keras_internals.BACKEND != "torch"
        self.data: JSON | None = None
        self._epoch_random: Any = None
        self._functions: set[str] = set()  # TensorFlow functions already inspected
        scope = Scope(own=lambda: variables.ids(self.leaves()), traced=True)
        self._attributes = Tree({}, dict(self._objects.parts()), scope)
        self._made = self._objects.only_made_by_script()
        self._setups = self._objects.setups()
        for setup in self._setups.values():
            setup.begin()
        self._objects.fingerprints()  # of built objects, before the loop changes them
        kinds = self._objects.kinds
        self._facts = {
            "identity": {"backend": keras_internals.BACKEND, "objects": kinds},
            "settings": fingerprint.environment(backend),
            "determinism": determinism.in_effect(),
        }

    # Captured between two batches. -------------------------------------------------

    def begin_epoch(self, *, repeated: bool) -> None:
        """User code at the start of an epoch is about to run.

        Args:
            repeated: It ran before the checkpoint too, and must draw the same numbers.
        """
        if not repeated:
            self._epoch_random = rng.capture(self.backend)
        elif self._epoch_random is not None:
            rng.restore(self.backend, self._epoch_random)

    def leaves(self) -> list[variables.Leaf]:
        return self._objects.leaves()

    def tensors(self, live: list[variables.Leaf]) -> dict[str, Any]:
        return variables.tensors(live)

    def after_step(self) -> bool:
        self._objects.fingerprints()  # before the loop changes newly built objects
        self._require_all_made()  # at once: a mistake is still cheap now
        return False

    def leaves_after(self, step: int) -> list[Any]:
        if self._objects.tree is not None:  # steps replace its leaves
            self._leaves = []
        return super().leaves_after(step)

    def _require_all_made(self) -> None:
        """Raise if a resume would lack what only the script can create."""
        now = self._objects.only_made_by_script().items()
        late = [name for key, name in now if key not in self._made]
        if late:
            raise NotSupportedError(
                "Metrics, or leaves of `state`, were created after the loop began, so "
                "a resume could not restore them.",
                received=", ".join(late),
                hint="Create them before the loop, in every attempt: for a compiled "
                "model with model.test_on_batch(x, y) and model.reset_metrics(), for a "
                "metric with one update_state and reset_state; in `state`, all that a "
                "step adds.",
            )

    def record(
        self, live: list[variables.Leaf], arrays: dict[str, Any], random: JSON
    ) -> LoopRun:
        self._require_all_made()
        operations = traces.operations_of_new_functions(self._functions)
        self._warn(OPERATIONS, operations)
        find_changes(self._attributes, {})
        attributes = list(self._attributes.baked)
        keep_in = "a variable, or in an object with state_dict"
        self._warn(RESET.format(keep_in), attributes)
        changes = self._plan.changes
        return LoopRun(
            stopped=self._plan.stopped,
            counting=self._plan.counting,
            random=random,
            objects=self._objects.capture(live, arrays),
            history=encode(self._plan.history.capture(), arrays, "history"),
            fingerprint=self._facts,
            data=self.data,
            setups=self._changed_setups(attributes),
            models=self._objects.fingerprints(),
            allowed=list(changes.every) if changes else [],
            epoch_random=self._epoch_random if self._plan.progress.batch else None,
        )

    def take(self, *args: Any, **kwargs: Any) -> Snapshot:
        taken = super().take(*args, **kwargs)
        if not self._alike:
            shared = {x.name for x in self._leaves if "" in x.copies}
            found = taken.tensors.arrays
            require_same_values(
                {n: a for n, a in found.items() if n in shared}, self._group
            )
            self._alike = True
        return taken

    def _changed_setups(self, attributes: Sequence[str]) -> dict[str, Any]:
        """What each compiled model trains with; ``attributes`` are known to change."""
        found = {}
        for name, setup in self._setups.items():
            setup.built()
            here = [a.removeprefix(f"{name}: ") for a in attributes]
            found[name] = setup.to_json(but=here)
            changed = found[name].get("changed", {}).items()
            self._warn(
                CHANGED.format("before the loop begins, each time"),
                {f"{name}: {key}": f"{name}: {line}" for key, line in changed},
            )
        return found

    # Compared and restored. ----------------------------------------------------------

    def parts(self, resume: Resume[LoopRun], inputs: DataInputs) -> list[Restorable]:
        """What is compared and restored, in this order."""
        of_data = partial(self._data_differences, resume)
        random, ahead = resume.run.random, inputs.drawn_ahead
        return [
            Restorable(of_data, partial(resume.move, inputs)),
            *self.objects(resume),
            Restorable(list, partial(self.restore_random, random, ahead)),
        ]

    def objects(self, resume: Resume[LoopRun]) -> list[Restorable]:
        """The variables, and the other state of objects."""
        of_objects = partial(self._differences, resume)
        return [
            Restorable(of_objects, partial(self._restore_variables, resume)),
            Restorable(list, partial(self._restore_objects, resume)),
        ]

    def _data_differences(self, resume: Resume[LoopRun]) -> list[Difference]:
        before, now = resume.run.data, self.data
        if before is None or now is None:
            return []
        found = comparison.data_differences(before, now)
        resume.find_place(found, before, now)
        return found

    def _differences(self, resume: Resume[LoopRun]) -> list[Difference]:
        """How the objects differ; creates missing variables."""
        run = resume.run
        found = comparison.compare(run.fingerprint, self._facts)
        kinds = run.fingerprint["identity"].get("objects", {})
        found += self._objects.kind_differences(kinds)
        for name, setup in run.setups.items():
            lines = setup.get("changed", {}).values()
            found += [Difference("run", f"{name}: {line}") for line in lines]
        if not resume.changes.refused(found):
            with rng.kept_random_state(self.backend):
                self._objects.build(self._cast(resume))
            other = self._objects.differences(self._cast(resume))
            fits = all(each.of != "run" for each in other)
            found += self._other_functions(run, fits=fits) + other
        return found

    def _cast(self, resume: Resume[LoopRun]) -> SavedState[LoopRun]:
        """The saved state, for the variables that there are by now."""
        resume.cast_to(self.leaves())
        return resume.saved

    def _other_functions(self, run: LoopRun, *, fits: bool) -> list[Difference]:
        """How models differ; ``fits``: although the weights fit."""
        return [
            Difference(each.of, f"{name}: {each.line}", f"{each.of}.{name}")
            for name, live in self._objects.fingerprints().items()
            if name in run.models
            for each in comparison.compare(run.models[name], live, fits=fits)
            if not each.line.startswith(_VERSIONS)
        ]

    def _restore_variables(self, resume: Resume[LoopRun]) -> None:
        mine, fresh = self._cast(resume), resume.changes.fresh
        self._objects.restore_variables(self.backend, mine, fresh)

    def _restore_objects(self, resume: Resume[LoopRun]) -> None:
        saved, run = self._cast(resume), resume.run
        self._objects.restore(saved, resume.changes.fresh)
        self._plan.history.restore(decode(run.history, saved.tensors))
        self._leaves = self.leaves()
        self._plan.stopped = run.stopped and not resume.goes_on
        self._plan.counting = run.counting
        self._epoch_random = run.epoch_random
