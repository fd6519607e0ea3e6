"""The state of a loop: captured between two batches, and restored."""

from collections.abc import Mapping, Sequence
from typing import Any

from resilient import keras_internals
from resilient.backends import determinism
from resilient.backends.base import Backend, HeldTensors, Part
from resilient.distributed.checks.model import require_same_values
from resilient.distributed.group import Group
from resilient.errors import CheckpointMismatchError, NotSupportedError
from resilient.objects.changes import changes as found_changes
from resilient.objects.tree import Scope, Tree
from resilient.progress import Progress
from resilient.saving import record
from resilient.saving.run_json import LoopRun
from resilient.saving.snapshot import Snapshot
from resilient.serialization import JSON
from resilient.serialization.json_values import decode, encode
from resilient.serialization.position import Positions
from resilient.state import comparison, fingerprint, rng, rng_ops, variables
from resilient.state.difference import Difference
from resilient.storage.checkpoint import Checkpoint
from resilient.training.allowed import Changes, allowing
from resilient.training.loop.position import Found, LoopPlan
from resilient.training.position_change import Moved, moved
from resilient.training.run_state import RunState
from resilient.witness import samples

_VERSIONS = ("keras: ", "python: ")  # which the run says, not each of its models


class LoopState(RunState):
    """The state of a loop.

    Args:
        plan: The run.
        backend: The backend's adapter.
        part: Which part of a checkpoint this process writes.
        group: The processes that train.
    """

    def __init__(
        self, plan: LoopPlan, backend: Backend, part: Part, group: Group
    ) -> None:
        super().__init__(backend, part)
        self._objects, self._history = plan.objects, plan.history
        self._standing, self._group = plan.standing, group
        # On PyTorch, only the loop itself keeps processes in step.
        self._alike = group.count == 1 or keras_internals.BACKEND != "torch"
        self._data: Any = None
        self._of_data: list[Difference] = []  # allowed, and not reported yet
        self._epoch_random: Any = None
        self._functions: set[str] = set()  # TensorFlow functions already inspected
        scope = Scope(own=self._own, traced=True)
        self._attributes = Tree({}, dict(self._objects.parts()), scope)
        self._metrics = self._objects.metrics()
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

    def _own(self) -> set[int]:
        return variables.ids(self.leaves())

    def leaves(self) -> list[variables.Leaf]:
        """Every variable."""
        return self._objects.leaves()

    def after_step(self) -> bool:
        self._objects.fingerprints()  # before the loop changes newly built objects
        self._require_metrics()  # at once: a mistake is still cheap now
        return False

    def leaves_after(self, step: int) -> list[Any]:
        if not self._leaves or self._objects.tree is not None:
            self._leaves = self.leaves()
        few = samples.chosen(self._leaves, step)
        return list(variables.tensors(few).values())

    def _require_metrics(self) -> None:
        """Raise if a resume would lack metrics, which only the loop can create."""
        late = [m for i, m in self._objects.metrics().items() if i not in self._metrics]
        if not late:
            return
        raise NotSupportedError(
            "Metrics were created after the loop began, so a resume could not "
            "restore them.",
            received=", ".join(late),
            hint="Create them before the loop, in every attempt: for a compiled model "
            "with model.test_on_batch(x, y) and model.reset_metrics(), for a metric "
            "with one update_state and reset_state.",
        )

    def take(
        self,
        progress: Progress,
        positions: Positions,
        random: Any,
        *,
        logs: Mapping[str, float] | None,
        reuse: HeldTensors | None,
    ) -> Snapshot:
        self._require_metrics()
        operations = rng_ops.operations_of_new_functions(self._functions)
        self._warnings.operations(operations)
        found_changes(self._attributes, {})
        attributes = list(self._attributes.baked)
        keep_in = "a variable, or in an object with state_dict"
        self._warnings.attributes(attributes, keep_in)
        arrays: dict[str, Any] = {}
        live = self._leaves = self.leaves()
        run = LoopRun(
            stopped=self._standing.stopped,
            counting=self._standing.counting,
            random=random,
            objects=self._objects.capture(live, arrays),
            history=encode(self._history.capture(), arrays, "history"),
            fingerprint=self._facts,
            data=self._data,
            setups=self._changed_setups(attributes),
            models=self._objects.fingerprints(),
            allowed=list(self._changes.every) if self._standing.changes else [],
            epoch_random=self._epoch_random if progress.batch else None,
        )
        tensors = variables.tensors(live)
        taken = self._snapshot(
            run, positions, live, tensors, arrays, progress=progress, reuse=reuse
        )
        if not self._alike:
            shared = {x.name for x in live if "" in x.copies}
            found = taken.tensors.arrays
            require_same_values(
                {n: a for n, a in found.items() if n in shared}, self._group
            )
            self._alike = True
        return taken

    def require_fits(
        self, checkpoint: Checkpoint, saved: record.SavedState[LoopRun]
    ) -> None:
        """Raise if it cannot be restored; create missing variables.

        Raises:
            CheckpointMismatchError: It belongs to a different run.
        """
        run = saved.run
        facts = run.fingerprint, self._facts
        found = comparison.compare(*facts)
        kinds = facts[0]["identity"].get("objects", {})
        found += self._objects.kind_differences(kinds)
        for name, setup in run.setups.items():
            lines = setup.get("changed", {}).values()
            found += [Difference("run", f"{name}: {line}") for line in lines]
        if not self._changes.refused(found):
            with rng.kept_random_state(self._backend):
                self._objects.build(saved.taken_by(self.leaves()))
            other = self._objects.differences(saved.taken_by(self.leaves()))
            fits = all(each.of != "run" for each in other)
            found += self._other_functions(run, fits=fits) + other
        self._require(checkpoint, found)
        self._changes.accept(self._of_data + found)

    def is_alike(self) -> bool:
        """Whether a checkpoint was found, and nothing differs from its run."""
        changes = self._standing.changes
        return changes is not None and not changes.found

    @property
    def _changes(self) -> Changes:
        """The differences, where this process resumes."""
        assert self._standing.changes is not None
        return self._standing.changes

    def _require(self, checkpoint: Checkpoint, found: list[Difference]) -> None:
        """Raise if anything differs that is not allowed."""
        found = self._changes.refused(found)
        if found:
            raise _other_run(checkpoint, found)

    def _other_functions(self, run: LoopRun, *, fits: bool) -> list[Difference]:
        """How models differ; ``fits``: although the weights fit."""
        return [
            Difference(each.of, f"{name}: {each.line}", f"{each.of}.{name}")
            for name, live in self._objects.fingerprints().items()
            if name in run.models
            for each in comparison.compare(run.models[name], live, fits=fits)
            if not each.line.startswith(_VERSIONS)
        ]

    def know_data(
        self, data: Mapping[str, Any], found: Found | None, *, begun: bool
    ) -> Moved | None:
        """Record the data's identity, and compare it with the checkpoint's.

        Args:
            data: Its fingerprint.
            found: The checkpoint that the run resumes from, if any.
            begun: Whether everything else has been compared.

        Returns:
            Where training continues, if on different data.

        Raises:
            CheckpointMismatchError: It was trained on different data.
        """
        self._data = {f"data {name}": value for name, value in data.items()}
        self._of_data = []
        if found is None or found[1].run.data is None:
            return None
        checkpoint, saved = found
        before: JSON = found[1].run.data
        position = saved.positions().x
        self._of_data = comparison.data_differences(before, self._data)
        self._require(checkpoint, self._of_data)
        elsewhere = None
        if self._of_data and position is not None:
            elsewhere = moved(checkpoint.progress, position, before, self._data)
        if begun:
            self._changes.accept(self._of_data)
        return elsewhere

    def restore(
        self, saved: record.SavedState[LoopRun], drawn_ahead: set[str | int]
    ) -> None:
        """Set everything, the random state last.

        Args:
            saved: What to set; known to fit.
            drawn_ahead: Random generators that prefetching data draws from.
        """
        self.restore_objects(saved)
        self._leaves = self.leaves()
        self._standing.stopped = saved.run.stopped
        self._standing.counting = saved.run.counting
        self._epoch_random = saved.run.epoch_random
        self._restore_random(saved.run.random, drawn_ahead)

    def begin_epoch(self, *, again: bool) -> None:
        """User code at the start of an epoch is about to run.

        Args:
            again: It ran before the checkpoint, and must draw the same numbers again.
        """
        if not again:
            self._epoch_random = rng.capture(self._backend)
        elif self._epoch_random is not None:
            rng.restore(self._backend, self._epoch_random)

    def _changed_setups(self, attributes: Sequence[str]) -> dict[str, Any]:
        """What each compiled model trains with; ``attributes`` are known to change."""
        found = {}
        for name, setup in self._setups.items():
            setup.built()
            here = [a.removeprefix(f"{name}: ") for a in attributes]
            found[name] = setup.to_json(but=here)
            do_it = "before the loop begins, each time"
            self._warnings.changed(f"{name}: ", found[name], do_it=do_it)
        return found

    def restore_objects(self, saved: record.SavedState[LoopRun]) -> None:
        """Set the objects and the history, and nothing else."""
        mine = saved.taken_by(self.leaves())
        self._objects.restore(self._backend, mine, self._changes.fresh)
        self._history.restore(decode(saved.run.history, saved.tensors))


def _other_run(
    checkpoint: Checkpoint, found: list[Difference]
) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"{checkpoint.path} belongs to a different run and cannot be resumed exactly.",
        received="\n  " + "\n  ".join(each.line for each in found),
        hint="Pass the same data, and the same objects under the same names. Build "
        "them before the loop: call models on a batch, and test_on_batch on models "
        "compiled with metrics. Or use another checkpoint_dir, or pass "
        'resume="never" to start over.' + allowing(found),
    )
