"""All that makes a checkpoint of a loop: taken between two batches, and put back."""

from collections.abc import Mapping
from typing import Any

from resilient import keras_internals
from resilient.backends import determinism
from resilient.backends.base import Backend, Part
from resilient.distributed.checks.model import require_same_values
from resilient.distributed.group import Group
from resilient.errors import CheckpointMismatchError, WarnOnce, warn_not_exact
from resilient.objects.adapters import Objects
from resilient.objects.adapters.base import SavedObject
from resilient.objects.attribute_watch import AttributeWatch
from resilient.objects.makeup.makeup import changes
from resilient.progress import Progress
from resilient.saving import record
from resilient.saving.record import Loaded
from resilient.saving.run_json import LoopRun, RunJson
from resilient.saving.snapshot import SnapshotTaker
from resilient.serialization.json_values import decode, encode
from resilient.serialization.position import Positions
from resilient.serialization.schema import to_json
from resilient.state import fingerprint, rng, rng_ops, variables
from resilient.storage.checkpoint import Checkpoint
from resilient.training.inexact import CHANGED, DRAWN_AHEAD
from resilient.training.loop.history import LogHistory
from resilient.training.loop.position import LoopPosition


class LoopState:
    """The state of a loop.

    Args:
        objects: What was passed by name.
        history: What was logged.
        standing: Where the run is.
        backend: The backend's adapter.
        part: Which part of a checkpoint this process makes.
        group: The processes that train.
    """

    def __init__(
        self,
        objects: Objects,
        history: LogHistory,
        standing: LoopPosition,
        *,
        backend: Backend,
        part: Part,
        group: Group,
    ) -> None:
        self._objects, self._history, self._standing = objects, history, standing
        self._backend = backend
        self._snapshots = SnapshotTaker(backend, part)
        # On PyTorch nothing but the loop itself sees to that.
        self._alike = group.count == 1 or keras_internals.BACKEND != "torch"
        self._group = group
        self._data: Any = None
        self._functions: set[str] = set()  # those of TensorFlow that were looked at
        self._attributes = AttributeWatch(objects.parts())
        self._makeups = objects.makeups()
        for makeup in self._makeups.values():
            makeup.begin()
        self._say = WarnOnce()
        self._facts = {
            "identity": {"backend": keras_internals.BACKEND, "objects": objects.kinds},
            "settings": fingerprint.environment(backend),
            "determinism": determinism.in_effect(),
        }

    def leaves(self) -> list[variables.Leaf]:
        """Every variable."""
        return self._objects.leaves()

    def after_step(self) -> None:
        """Nothing: what a step did shows when a snapshot is taken."""

    def take(
        self,
        progress: Progress,
        positions: Positions,
        random: Any,
        *,
        logs: Mapping[str, float] | None,
    ) -> record.PendingCheckpoint:
        """Take a snapshot of everything.

        Args:
            progress: Where the loop is.
            positions: Where the data is.
            random: The random state of this moment.
            logs: Not needed.
        """
        self._say(
            "these operations of traced functions keep random state where no "
            "checkpoint can reach it, and start over after a resume (draw with "
            "keras.random and a SeedGenerator, or a tf.random.Generator)",
            rng_ops.operations_of_new_functions(self._functions),
        )
        self._say(
            CHANGED.format("a variable, or in an object with state_dict"),
            list(self._attributes.changed()),
        )
        makeups = self._look_at_makeups()
        arrays: dict[str, Any] = {}
        position = encode(to_json(positions), arrays, "data")
        live = self._objects.leaves()
        run = LoopRun(
            progress=progress.to_json(),
            stopped=self._standing.stopped,
            counting=self._standing.counting,
            random=random,
            objects=self._objects.capture(live, arrays),
            history=encode(self._history.capture(), arrays, "history"),
            fingerprint=self._facts,
            data=self._data,
            makeups=makeups,
        )
        taken = self._snapshots.take(
            run, position, live, variables.tensors(live), arrays
        )
        if not self._alike:
            shared = {x.name for x in live if "" in x.copies}
            found = taken.snapshot.arrays
            require_same_values(
                {n: a for n, a in found.items() if n in shared}, self._group
            )
            self._alike = True
        return taken

    def require_loop(
        self, checkpoint: Checkpoint, saved: record.SavedState[RunJson]
    ) -> record.SavedState[LoopRun]:
        """The same, or CheckpointMismatchError for a checkpoint of something else."""
        if not record.is_of(saved, LoopRun):
            raise CheckpointMismatchError(
                "A loop cannot go on from a checkpoint of something else.",
                received=f"{checkpoint.path}, saved by resilient.fit or Checkpoints",
                hint="Use another checkpoint_dir: each run needs its own.",
            )
        return saved

    def require_fits(
        self, checkpoint: Checkpoint, loaded: record.SavedState[RunJson]
    ) -> record.SavedState[LoopRun]:
        """The same, or raise where it cannot be restored; missing variables are made.

        Raises:
            CheckpointMismatchError: It is of another run.
        """
        saved = self.require_loop(checkpoint, loaded)
        run = saved.run
        found = fingerprint.identity_differences(run.fingerprint, self._facts)
        found += _changes(run.makeups)
        if not found:
            of_objects = _of_objects(saved)
            with rng.kept_random_state(self._backend):
                self._objects.build(of_objects)
            found = self._objects.differences(of_objects)
        if found:
            raise _other_run(checkpoint, found)
        changed = fingerprint.settings_differences(run.fingerprint, self._facts)
        if changed:
            warn_not_exact("these settings changed since the checkpoint", changed)
        return saved

    def know_data(self, data: Mapping[str, Any], found: Loaded | None) -> None:
        """Keep what the data is, and see whether a checkpoint was trained on it.

        Args:
            data: Its fingerprint.
            found: The checkpoint to go on from, if there is one.

        Raises:
            CheckpointMismatchError: It was trained on other data.
        """
        self._data = {f"data {name}": value for name, value in data.items()}
        if found is None or not isinstance(run := found[1].run, LoopRun):
            return
        if run.data is None:
            return
        differences = fingerprint.identity_differences(
            {"identity": run.data}, {"identity": self._data}
        )
        if differences:
            raise _other_run(found[0], differences)

    def restore(
        self, saved: record.SavedState[LoopRun], drawn_ahead: set[str | int]
    ) -> None:
        """Set everything, the random state last.

        Args:
            saved: What to set; it fits.
            drawn_ahead: Random generators that the data draws from ahead of the loop.
        """
        self.put_back_objects(saved)
        self._standing.stopped = saved.run.stopped
        self._standing.counting = saved.run.counting
        random, now = saved.run.random, rng.capture(self._backend)
        left = rng.drawn_from(random, now) & drawn_ahead
        self._say(DRAWN_AHEAD, sorted(map(str, left)))
        rng.restore(self._backend, random, leave=left)

    def _look_at_makeups(self) -> dict[str, Any]:
        """What each compiled model trains with; warns where the loop changed that."""
        attributes, found = self._attributes.changed(), {}  # these are said as well
        for name, makeup in self._makeups.items():
            makeup.built()
            here = [a.removeprefix(f"{name}: ") for a in attributes]
            found[name] = makeup.to_json(but=here)
        self._say(
            "a model was changed in the middle of the loop, which a resume cannot "
            "follow and will refuse (do that before the loop begins, each time)",
            _changes(found),
        )
        return found

    def put_back_objects(self, saved: record.SavedState[LoopRun]) -> None:
        """Set the objects and the history, and nothing else."""
        self._objects.restore(self._backend, _of_objects(saved))
        self._history.restore(decode(saved.run.history, saved.tensors))


def _changes(makeups: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {x}" for name, saved in makeups.items() for x in changes(saved)]


def _other_run(
    checkpoint: Checkpoint, differences: list[str]
) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"{checkpoint.path} belongs to another run: it cannot be resumed exactly.",
        received="\n  " + "\n  ".join(differences),
        hint="Pass the same data, and the same objects under the same names, built "
        "(before the loop begins call models on a batch, and test_on_batch of "
        "those that were compiled with metrics); or use another "
        'checkpoint_dir; or pass resume="never" to start anew.',
    )


def _of_objects(saved: record.SavedState[LoopRun]) -> SavedObject:
    run = saved.run
    return SavedObject(run.objects, run.variables, saved.tensors)
