"""The table: what is trained, how it is saved, and where it is killed.

A chain is a list of kills of one run, one attempt each; after the last one an attempt
goes on to the end. A kill is written so (``killing`` parses it):

* ``batch 1:3``            at the end of batch 3 of epoch 1, in the last callback
* ``validation 1:0``       at the end of that batch of the validation
* ``epoch begins 1``, ``epoch ends 0``, ``train ends``
* ``step 8``               in the body of a loop, when that step is trained
* ``save 2``               a few milliseconds after the second save of the attempt began
* ``... SIGTERM``          with that signal; ``... stop`` by the file ``stop``
* ``... !``                at once: before anything may be saved
* ``second: ...``          in the second fit of the program
* ``worker 1: ...``        that one of two workers
* ``damage``               no attempt: one bit of the newest checkpoint changes

Where there is no ``!`` it first waits for a checkpoint of this attempt, so that each
attempt gets further than the one before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from resilient import Rollback, best, every, latest

TF, JAX, TORCH = BACKENDS = ("tensorflow", "jax", "torch")

# Chains: each has more than one kind of kill, as each attempt is one more to pay for.
AGAIN = ("batch 1:2", "batch 1:4")  # twice in one epoch
TWICE = ("epoch ends 0", *AGAIN)
EDGES = ("batch 0:3", "epoch begins 1", "save 2")
SAVES = ("save 1", "save 2", "epoch ends 1")
STEPS = ("step 3", "step 8", "step 10")


@dataclass(frozen=True)
class Row:
    """A program and how it is killed.

    Attributes:
        name: Of a function in ``fits`` or ``sources``; ``loop...`` in ``loops``.
        chain: Its kills.
        options: Of ``resilient.fit``, ``Run`` or ``enabled``.
        on: The backends that it is for.
        plain: Those on which Keras alone, or the loop alone, ends with the same bytes.
        through: How it is saved: by ``fit``, ``enabled``, or a callback
            (``BackupAndRestore``).
        fresh: Whether an attempt that resumes is a new interpreter, not a forked one.
        workers: How many processes train together.
        again: Whether the finished program is run once more, and must train nothing.
    """

    name: str
    chain: tuple[str, ...] = TWICE
    options: dict[str, Any] = field(default_factory=lambda: {"save_freq": 2})
    on: tuple[str, ...] = BACKENDS
    plain: tuple[str, ...] = BACKENDS
    through: str = "fit"
    fresh: bool = False
    workers: int = 1
    again: bool = False

    @property
    def id(self) -> str:
        extra = "" if self.through == "fit" else f"_through_{self.through}"
        return self.name + extra + "_in_new_interpreters" * self.fresh

    @property
    def is_loop(self) -> bool:
        return self.name.startswith("loop")


def source(name: str, chain: tuple[str, ...] = AGAIN, **others: Any) -> Row:
    """A row about a source of data: saved at each step."""
    return Row(name, chain, **{"options": {"save_freq": 1}} | others)


OFTEN = {"save_freq": 1, "keep": 2}
MIXED = {
    "save_freq": every(steps=4) | every(epochs=1),
    "keep": latest(2) | best(1, monitor="loss"),
}
ROLLBACK = {"save_freq": 1, "on_nan": Rollback(steps=1, skip=3, limit=9)}

ROWS = [
    # Arrays, and arguments of fit and compile.
    Row("arrays", ("batch 0:0 !", *TWICE), MIXED),
    Row("arrays", ("batch 1:3",), fresh=True),
    Row("arrays", ("batch 0:3", "batch 1:1", "damage"), OFTEN, through="enabled"),
    Row("arrays", EDGES, through="callback"),
    Row("steps_per_epoch", ("batch 1:0", "batch 2:1", "save 1")),
    Row("weights_and_splits", ("validation 1:0", "batch 2:3"), {"save_freq": "epoch"}),
    Row("sample_weights_in_order", SAVES, OFTEN),
    Row("tensors_in_half_precision", AGAIN),
    Row("inputs_by_name", EDGES),
    Row("several_steps_at_once", ("batch 1:2", "batch 2:3"), OFTEN, on=(TF, JAX)),
    Row("bad_sample", ("batch 0:5", "batch 1:3"), ROLLBACK, plain=()),
    # Models and their training steps.
    Row("convolution", ("epoch ends 0", "validation 1:0", "batch 2:2")),
    Row("subclassed", EDGES),
    Row("own_train_step", AGAIN),
    Row("stateful_rnn", ("batch 0:3", "batch 1:3")),
    Row("two_fits", ("batch 1:2", "second: batch 0:1 !", "second: batch 1:3")),
    Row("two_fits", ("batch 1:2", "second: batch 1:3"), OFTEN, through="enabled"),
    # Callbacks and what else has state.
    Row("callbacks", ("batch 1:3", "epoch ends 2", "batch 3:4"), again=True),
    Row("swapped_averages", ("batch 1:2", "epoch ends 1", "train ends")),
    Row("own_callbacks", EDGES),
    Row("state_in_functions_and_queues", EDGES, plain=()),
    Row("state_of_steps", EDGES, on=(TF, TORCH)),
    Row("optimizers_in_an_optimizer", AGAIN, on=(TF, TORCH)),
    Row("stops_amid_an_epoch", ("batch 1:1", "train ends"), again=True),
    # Requests to stop.
    Row("arrays_asked_to_stop", ("batch 0:3 SIGTERM", "batch 1:1 SIGINT", "save 1")),
    Row("tf_data_asked_to_stop", ("batch 1:1 SIGTERM", "batch 1:3 stop"), on=(TF,)),
    # Sources of data.
    source("tf_data", ("batch 0:3", "batch 1:2", "epoch begins 2")),
    source("tf_data_interleaved", ("batch 1:1", "batch 1:3", "save 2")),
    source("tf_data_of_python", on=(TF, TORCH)),
    source("tf_data_random_map"),
    source("torch_loader", ("batch 0:3", "batch 1:2", "epoch begins 2")),
    source("torch_workers", ("batch 1:1", "batch 1:3")),
    source("torch_iterable", ("epoch ends 0", "batch 1:3"), on=(TORCH, JAX)),
    source("stateful_loader"),
    source("grain_map", ("batch 0:3", "batch 1:2", "save 2")),
    source("grain_loader", ("epoch ends 0", "batch 1:3")),
    Row("py_dataset", ("batch 0:3", "batch 1:2", "epoch begins 2"), OFTEN),
    Row("py_dataset_workers", ("batch 1:1", "batch 1:3"), OFTEN, plain=(TF,)),
    Row("generator", AGAIN, OFTEN),
    Row("own_iterable", AGAIN, OFTEN, plain=()),
    # Loops.
    Row("loop_of_keras", ("epoch ends 0", "step 8", "step 10"), plain=()),
    Row("loop_of_two_networks", ("step 3", "save 2", "step 14"), OFTEN),
    Row("loop_by_hand", ("step 5", "step 11"), plain=()),
    Row("loop_asked_to_stop", ("step 4 SIGTERM", "step 9"), plain=()),
    Row("loop_tape", STEPS, on=(TF,)),
    Row("loop_tree", STEPS, on=(JAX,)),
    Row("loop_torch", (*STEPS, "save 2"), on=(TORCH,)),
    # Two processes.
    Row("workers", ("worker 1: batch 0:3", "worker 0: batch 1:2"), workers=2, plain=()),
]


def by_backend() -> Iterator[tuple[str, Row]]:
    """Each row on each of its backends."""
    for backend in BACKENDS:
        for row in ROWS:
            if backend in row.on:
                yield backend, row
