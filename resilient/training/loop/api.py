"""``resilient.Run``: custom training loops with the guarantee of ``fit``.

Importing this module loads neither Keras nor a backend.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from resilient.convert.start import checked_starts
from resilient.errors import ResilientError, message, require_integer
from resilient.training.loop.context import RunContext, wrong_place_error
from resilient.training.loop.history import LogHistory
from resilient.training.options import (
    OF_LOOPS,
    Location,
    LoopOptions,
    RunOptions,
    checked_allow,
)
from resilient.training.shown import shown_with
from resilient.user_line import ending_at_user_line

if TYPE_CHECKING:
    from resilient.training.loop.attempt import LoopAttempt
    from resilient.training.loop.batches import BatchOptions

Shuffle = Literal[True, False, "batch"] | None


@shown_with(LoopOptions)
class Run(RunContext):
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
        from resilient.training.loop.position import LoopPlan

        ours = {each.name for each in fields(LoopOptions)} & objects.keys()
        given = LoopOptions(**{name: objects.pop(name) for name in ours})
        named = {name: kind_of_iterator(name, x) or x for name, x in objects.items()}
        found = Objects(named, given.state)
        self._tree = found.tree
        checked_allow(given.allow, OF_LOOPS)
        options = RunOptions(checkpoint_dir, given)
        starts = checked_starts(
            given.start_from, given.start_layers, list(found.models()), given.state
        )
        super().__init__(LoopPlan(options, found, LogHistory(), given.verbose, starts))
        self._data = given.data

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
        data, options = self._given(data, batch_size, shuffle, steps_per_epoch)
        require_integer(epochs, "`epochs`")
        return self._loop(data, options, self._shortened(epochs))

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
        require_integer(epochs, "`epochs`")
        return self._epochs(self._shortened(epochs))

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
        data, options = self._given(data, batch_size, shuffle, steps_per_epoch)
        if self._attempt is None or not self._attempt.in_loop:
            raise wrong_place_error(
                "batches", "Write `for epoch in run.epochs(n):` around it."
            )
        return self._batches(self._attempt, data, options)

    def stop(self) -> None:
        """End the run for good after this batch."""
        self._plan.position.stopped = True

    def log(self, **values: Any) -> None:
        """Add numbers to ``history``, with the step of this batch.

        Args:
            **values: Scalars of Python, NumPy or the backend.

        Raises:
            TypeError: One is not a number.
        """
        attempt, position = self._attempt, self._plan.position
        step = position.progress.step if attempt is None else attempt.step
        self.history.add(step, values)
        if attempt is not None:
            attempt.logged(values)

    @property
    def history(self) -> LogHistory:
        return self._plan.history

    @property
    def step(self) -> int:
        """Steps done since the start of the run."""
        return self._plan.position.progress.step

    @property
    def state(self) -> Any:
        """The JAX pytree, to read and to assign."""
        return None if self._tree is None else self._tree.value

    @state.setter
    def state(self, value: Any) -> None:
        if self._tree is None:
            raise ResilientError(
                "run.state can be assigned only where Run was given `state`, a JAX "
                "pytree.",
                received=f"an assignment of {type(value).__name__}",
                hint="Pass state=... to Run.",
            )
        self._tree.value = value

    def _loop(
        self, data: Any, options: "BatchOptions", epochs: int
    ) -> Iterator[tuple[int, int, Any]]:
        with ending_at_user_line, self._entered() as attempt:
            for epoch in attempt.epochs(epochs, data, options):
                for step, batch in attempt.batches(data, options):
                    yield epoch, step, batch

    def _batches(
        self, attempt: "LoopAttempt", data: Any, options: "BatchOptions"
    ) -> Iterator[tuple[int, Any]]:
        with ending_at_user_line:
            yield from attempt.batches(data, options)

    def _epochs(self, epochs: int) -> Iterator[int]:
        with ending_at_user_line, self._entered() as attempt:
            yield from attempt.epochs(epochs)

    def _shortened(self, epochs: int) -> int:
        """As many epochs, or as few as ``resilient prove`` asks for."""
        trial = self._plan.options.trial
        return epochs if trial is None else trial.fewer_epochs(epochs)

    def _given(
        self,
        data: Any,
        batch_size: int | None,
        shuffle: Shuffle,
        steps_per_epoch: int | None,
    ) -> "tuple[Any, BatchOptions]":
        """The data to iterate, and how."""
        from resilient.training.loop.batches import BatchOptions, require_batches

        for name, number in (
            ("batch_size", batch_size),
            ("steps_per_epoch", steps_per_epoch),
        ):
            if number is not None:
                require_integer(number, f"`{name}`")
        if shuffle not in (None, True, False, "batch"):
            raise ValueError(
                message(
                    '`shuffle` must be True, False or "batch".',
                    received=repr(shuffle),
                )
            )
        given = [each for each in (data, self._data) if each is not None]
        if not given or given[0] is not given[-1]:
            raise ValueError(
                message(
                    "A loop iterates over one dataset.",
                    received="one for Run, another for the loop"
                    if given
                    else "no data",
                    hint="Pass the data to the loop, or as data= to Run, or the same "
                    "to both.",
                )
            )
        options = BatchOptions(batch_size, shuffle, steps_per_epoch)
        if isinstance(given[0], list):
            require_batches(given[0], batch_size, shuffle)
        return given[0], options
