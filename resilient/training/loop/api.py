"""``resilient.Run``: custom training loops with the guarantee of ``fit``.

Importing this module loads neither Keras nor a backend.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, Self

from resilient.convert.start import checked_starts
from resilient.errors import NotSupportedError, ResilientError, message, require_integer
from resilient.saving.directory import OnDirectory
from resilient.storage.checkpoint import Checkpoint
from resilient.training.loop.history import LogHistory
from resilient.training.options import Location, LoopOptions, RunOptions
from resilient.training.shown import shown_with
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    from resilient.objects.adapters import Objects
    from resilient.training.loop.attempt import LoopAttempt
    from resilient.training.loop.batches import BatchOptions

Shuffle = Literal[True, False, "batch"] | None


@shown_with(LoopOptions)
class Run(OnDirectory):
    """A custom training loop that can be killed anywhere and run again.

    .. code-block:: python

        run = resilient.Run("runs/gan", model=model, optimizer=optimizer)
        for epoch, step, batch in run.loop(dataset, epochs=5):
            loss = train_step(batch)
            run.log(loss=loss)

    When the loop begins, every object that was passed by name is restored in place. The
    loop resumes with the batch after the checkpoint, and ``step`` and ``run.history``
    continue as if nothing had happened.

    Args:
        checkpoint_dir: As in ``resilient.fit``.
        ...: Those of ``LoopOptions``.
        **objects: Everything that the loop changes, under names of your choice: models,
            layers, optimizers, metrics, variables and random generators of Keras,
            TensorFlow, PyTorch or NumPy, tf.data iterators, and any object with
            ``state_dict`` and ``load_state_dict``.

    Attributes:
        history: Everything that was logged over the whole run: name to a list of
            numbers. ``history.steps(name)`` are their steps.

    Raises:
        TypeError: An object has a type that cannot be saved, or an argument has the
            wrong type.
        ValueError: An argument has an invalid value.
        NotSupportedError: An object belongs to a backend other than Keras's.
    """

    @ending_at_user_line
    def __init__(self, checkpoint_dir: Location, **objects: Any) -> None:
        from resilient.data.select import kind_of_iterator
        from resilient.objects.adapters import Objects
        from resilient.training.loop.state import LoopPlan

        ours = {each.name for each in fields(LoopOptions)} & objects.keys()
        given = LoopOptions(**{name: objects.pop(name) for name in ours})
        named = {name: kind_of_iterator(name, x) or x for name, x in objects.items()}
        found = Objects(named, given.state)
        _require_saveable(Objects({}, given.state))
        options = RunOptions(checkpoint_dir, given)
        models = [] if given.state is not None else list(found.models())
        starts = checked_starts(given.start_from, given.start_layers, models)
        super().__init__(options.store)
        self._plan = LoopPlan(options, found, LogHistory(), given.verbose, starts)
        self._data = given.data
        # Of a ``with`` block.
        self._entered: contextlib.AbstractContextManager[None]

    @ending_at_user_line
    def loop(
        self,
        data: Any = None,
        *,
        epochs: int,
        batch_size: int | None = None,
        shuffle: Shuffle = None,
        steps_per_epoch: int | None = None,
    ) -> Iterator[tuple[int, int, Any]]:
        """Iterate over the rest of the run, yielding epoch, step and batch.

        It saves between batches when ``save_freq`` says so, and at the end.

        Args:
            data: Whatever ``fit`` takes: a tf.data.Dataset, torch DataLoader,
                PyDataset, Grain dataset, generator, iterable with ``state_dict``, an
                array or a tuple of arrays ``(x, y)``. Or a list of batches, such as
                ``[(x0, y0), (x1, y1)]``.
            epochs: Epochs of the whole run, counted from its start.
            batch_size: For arrays; the default is 32.
            shuffle: For arrays and PyDatasets, which are shuffled by default.
            steps_per_epoch: Batches per epoch, for endless data.

        Yields:
            The epoch and the step, both counted from 0 over the whole run, and a batch:
            on every backend, what ``for batch in data`` yields. Batches of arrays are
            tensors on TensorFlow and PyTorch, and NumPy arrays on JAX. Under a
            TensorFlow strategy, batches are what ``strategy.run`` takes.

        Raises:
            CheckpointMismatchError: The checkpoint belongs to a different run.
            DataNotResumableError: The data has no position to return to.
            Preempted: The loop stopped on request; a ``SystemExit``.
            ResilientError: As for ``resilient.fit``.
        """
        given = self._given(data, batch_size, shuffle, steps_per_epoch)
        return self._loop(*given, self._number_of(epochs))

    @ending_at_user_line
    def epochs(self, epochs: int) -> Iterator[int]:
        """Iterate over the remaining epochs, for nested loops.

        .. code-block:: python

            for epoch in run.epochs(5):
                for step, batch in run.batches(dataset):
                    run.log(loss=train_step(batch))
                run.log(val_loss=evaluate())

        Args:
            epochs: Epochs of the whole run, counted from its start.
        """
        return self._epochs(self._number_of(epochs))

    @ending_at_user_line
    def batches(
        self,
        data: Any = None,
        *,
        batch_size: int | None = None,
        shuffle: Shuffle = None,
        steps_per_epoch: int | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Iterate over the rest of an epoch: step and batch. Arguments as in ``loop``.

        Raises:
            ResilientError: Called outside ``epochs``, or twice in one epoch.
        """
        given = self._given(data, batch_size, shuffle, steps_per_epoch)
        if self._plan.attempt is None or not self._plan.attempt.in_loop:
            raise wrong_place_error(
                "batches", "Write `for epoch in run.epochs(n):` around it."
            )
        return self._batches(self._plan.attempt, *given)

    def stop(self) -> None:
        """End the run for good after this batch."""
        self._plan.stopped = True

    def log(self, **values: Any) -> None:
        """Add numbers to ``history``, with the step of this batch.

        Args:
            **values: Scalars of Python, NumPy or the backend.

        Raises:
            TypeError: One is not a number.
        """
        if self._plan.attempt is None:
            self.history.add(self.step, values)
        else:
            self._plan.attempt.log(values)

    @ending_at_user_line
    def __enter__(self) -> Self:
        """Lock the directory and restore its newest checkpoint.

        Raises:
            DirectoryInUseError: Another run is using the directory.
            CheckpointMismatchError: The checkpoint belongs to a different run.
            CorruptCheckpointError: There are checkpoints, but none is intact.
        """
        from resilient.training.loop.attempt import enter_run

        if self._plan.attempt is not None:
            raise wrong_place_error("with", "Enter it once, and outside its loops.")
        self._entered = enter_run(self._plan)
        self._entered.__enter__()
        return self

    @ending_at_user_line
    def __exit__(self, *error: Any) -> None:
        """Save, unless an error ended the block, and unlock the directory."""
        self._entered.__exit__(*error)

    @ending_at_user_line
    def advance(self, steps: int = 1) -> None:
        """Count steps done in a ``with`` block without ``loop``, and save if due.

        Raises:
            Preempted: The run stopped on request, and was saved.
        """
        require_integer(steps, "`steps`")
        self._require_attempt("advance").advance(steps)

    @ending_at_user_line
    def save(self) -> None:
        """Save now; inside ``loop`` and ``batches``, after this batch.

        Raises:
            ResilientError: Called outside both ``with`` and a loop.
        """
        self._require_attempt("save").save()

    @ending_at_user_line
    def restore(self, step: int | None = None) -> Checkpoint:
        """Restore all objects to their state in a checkpoint.

        Inside ``with``, the run continues from there, and later checkpoints move to
        quarantine. Outside, it is only for inspection: the next loop still resumes from
        the newest checkpoint.

        Args:
            step: Which checkpoint; the newest intact one by default.

        Returns:
            The checkpoint.

        Raises:
            CheckpointNotFoundError: There is none, or none of that step.
            CheckpointMismatchError: It belongs to a different run; nothing was changed.
            ResilientError: Called inside a loop.
        """
        from resilient.training.loop.attempt import inspect

        if self._plan.attempt is not None:
            return self._plan.attempt.go_back_to(step)
        with self._store.locked():
            return inspect(self._plan, step)

    @property
    def history(self) -> LogHistory:
        return self._plan.history

    @property
    def step(self) -> int:
        """Steps done since the start of the run."""
        return self._plan.progress.step

    @property
    def state(self) -> Any:
        """The JAX pytree, to read and to assign."""
        tree = self._plan.objects.tree
        return None if tree is None else tree.value

    @state.setter
    def state(self, value: Any) -> None:
        tree = self._plan.objects.tree
        if tree is None:
            raise wrong_place_error("state", "Pass state=..., a JAX pytree, to Run.")
        tree.value = value

    def _loop(
        self, data: Any, options: "BatchOptions", epochs: int
    ) -> Iterator[tuple[int, int, Any]]:
        with ending_at_user_line, self._attempted() as attempt:
            for epoch in attempt.epochs(epochs, data, options):
                for step, batch in attempt.batches(data, options):
                    yield epoch, step, batch

    def _batches(
        self, attempt: "LoopAttempt", data: Any, options: "BatchOptions"
    ) -> Iterator[tuple[int, Any]]:
        with ending_at_user_line:
            yield from attempt.batches(data, options)

    def _epochs(self, epochs: int) -> Iterator[int]:
        with ending_at_user_line, self._attempted() as attempt:
            yield from attempt.epochs(epochs)

    def _attempted(self) -> "contextlib.AbstractContextManager[LoopAttempt]":
        """This process's attempt: that of an enclosing ``with``, or a temporary one."""
        from resilient.training.loop.attempt import open_run

        attempt = self._plan.attempt
        return (
            open_run(self._plan) if attempt is None else contextlib.nullcontext(attempt)
        )

    def _require_attempt(self, what: str) -> "LoopAttempt":
        if self._plan.attempt is None:
            raise wrong_place_error(
                what, "Write `with run:` around it, or use run.loop."
            )
        return self._plan.attempt

    def _number_of(self, epochs: int) -> int:
        """As many epochs, or as few as Keras is configured to train."""
        import keras

        require_integer(epochs, "`epochs`")
        return min(epochs, keras.config.max_epochs() or epochs)

    def _given(self, data: Any, *how: Any) -> "tuple[Any, BatchOptions]":
        """The data to iterate, and how."""
        from resilient.training.loop.batches import BatchOptions, require_batches

        options = BatchOptions(*how)
        for name in ("batch_size", "steps_per_epoch"):
            if (number := getattr(options, name)) is not None:
                require_integer(number, f"`{name}`")
        if options.shuffle not in (None, True, False, "batch"):
            what = '`shuffle` must be True, False or "batch".'
            raise ValueError(message(what, received=repr(options.shuffle)))
        given = [each for each in (data, self._data) if each is not None]
        if not given or given[0] is not given[-1]:
            raise ValueError(
                message(
                    "A loop iterates over one dataset.",
                    received="two" if given else "no data",
                    hint="Pass the data to the loop, or as data= to Run, or the same "
                    "to both.",
                )
            )
        if isinstance(given[0], list):
            require_batches(given[0], options)
        return given[0], options


def _require_saveable(tree: "Objects") -> None:
    """Raise NotSupportedError for leaves of a pytree that no checkpoint can hold."""
    try:
        tree.capture(tree.leaves(), {})
    except NotSupportedError as error:
        raise NotSupportedError(
            "`state` has a leaf that cannot be saved, such as a function.",
            received=error.received,
            hint="With Equinox: params, static = eqx.partition(state, eqx.is_array); "
            "pass state=params, and use eqx.combine(run.state, static) in the step.",
        ) from None


def wrong_place_error(what: str, todo: str) -> ResilientError:
    """The error for ``run.what``; ``todo`` says where it belongs."""
    name = "`with run`" if what == "with" else f"run.{what}"
    return ResilientError(f"{name} cannot be used here.", hint=todo)
