"""Why two results differ: likely causes among the known ones, with the evidence.

The evidence: whether the script repeats at all without kills, and whether its batches
do; then the first tensor or state that differs, what the run itself warned of, and
lines of the script.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from resilient.prove.recorded import Difference
from resilient.prove.suspects import Kind, Suspect

_AROUND: tuple[Kind, ...] = ("attempts", "time", "date", "files")
_LINES = 5  # of the script, for each cause


@dataclass(frozen=True)
class Evidence:
    """What is known about a script whose results differ.

    Attributes:
        first: The first place at which the killed run differs, if there is one.
        repeats: The first place at which a second uninterrupted run differs from the
            first; None: it repeats.
        batches: The same for the batches alone; None: they repeat, or it is unknown.
        resumed_batches: The first place at which batches differ only after kills.
        warnings: What the run itself warned would not be exact.
        suspects: Suspicious lines of the script.
        seeds: Whether the script sets the seed of everything.
        drawn: Whether the batches alone could be drawn, to compare them.
    """

    first: Difference | None
    repeats: Difference | None
    batches: Difference | None
    resumed_batches: Difference | None
    warnings: Sequence[str] = ()
    suspects: Sequence[Suspect] = ()
    seeds: bool = True
    drawn: bool = True


@dataclass(frozen=True)
class Reason:
    """A likely cause.

    Attributes:
        text: In words, with what to do.
        lines: Lines of the script, or warnings, that support it.
    """

    text: str
    lines: tuple[str, ...] = field(default=())


def reasons(known: Evidence) -> list[Reason]:
    """The likely causes, the likeliest first."""
    return list(_without_kills(known) if known.repeats else _after_kills(known))


def _without_kills(known: Evidence) -> Iterable[Reason]:
    """The script does not repeat, even without kills."""
    assert known.repeats is not None
    at = known.repeats.place
    began = "The script gives different results each time, even without a kill: "
    if at.at_end:
        yield Reason(
            f"{began}what it does after training changes {_leaves(known.repeats)}.",
            _lines(known, "unseeded", *_AROUND),
        )
        return
    if not at.step and not known.seeds:
        yield Reason(
            f"{began}its initial weights are random, and no seed is set. Call "
            "keras.utils.set_random_seed(0) before the model is built.",
            _lines(known, "unseeded"),
        )
    elif not at.step:
        yield Reason(
            f"{began}it differs before the first step, in {_leaves(known.repeats)}.",
            _lines(known, "unseeded", *_AROUND),
        )
    if known.batches is not None:
        yield Reason(
            f"{began}its data is not seeded. Batches differ from "
            f"{known.batches.place} on. Give each random generator of the data a seed.",
            _lines(known, "unseeded", "workers"),
        )
    elif at.step:
        time = _lines(known, *_AROUND)
        if time:
            yield Reason(
                f"{began}it depends on the time, on the process, or on which files "
                "exist.",
                time,
            )
        batches = "batches are the same, and " if known.drawn else ""
        yield Reason(
            f"{began}{batches}at {at} {_leaves(known.repeats)} differs: an operation "
            "is not deterministic. Call resilient.deterministic(seed=0) first.",
        )


def _after_kills(known: Evidence) -> Iterable[Reason]:
    """The script repeats, but not after kills."""
    began = "The script repeats without a kill, but not after a resume: "
    if known.resumed_batches is not None:
        yield Reason(
            f"{began}its data. Batches differ from {known.resumed_batches.place} on: "
            "a generator that keeps state of its own, or random numbers in the workers "
            "of the data.",
            _lines(known, "generator", "workers", "unseeded"),
        )
    if known.warnings:
        yield Reason(
            f"{began}state that is not captured. The run warned of it.",
            tuple(known.warnings),
        )
    leaves = () if known.first is None else known.first.leaves
    if known.first is not None and known.first.place.at_end:
        yield Reason(
            f"{began}what the script does after training, or a callback in "
            f"on_train_end, sets {_leaves(known.first)} from values that no checkpoint "
            "holds. Keep them in `stateful`, or in a callback's attributes.",
        )
    callbacks = [name for name in leaves if name.startswith("callbacks/")]
    if callbacks:
        yield Reason(
            f"{began}the state of a callback is not captured completely: "
            f"{', '.join(callbacks)}. Give it state_dict and load_state_dict.",
        )
    if lines := _lines(known, *_AROUND):
        yield Reason(
            f"{began}code that depends on the time, on the process, or on the number "
            "of attempts.",
            lines,
        )


def nothing_trained(suspects: Sequence[Suspect]) -> Reason:
    """Why the script may have trained only when it was run for the first time."""
    lines = [str(each) for each in suspects if each.kind == "files"]
    return Reason(
        "Run for the second time, the script trained nothing. It may look for a file "
        "that it wrote the first time: remove that file at the start of the command.",
        tuple(lines[:_LINES]),
    )


def _leaves(difference: Difference) -> str:
    leaves = difference.leaves
    if not leaves:
        return "the state"
    return (
        leaves[0] if len(leaves) == 1 else f"{leaves[0]} (and {len(leaves) - 1} more)"
    )


def _lines(known: Evidence, *kinds: Kind) -> tuple[str, ...]:
    return tuple(str(x) for x in known.suspects if x.kind in kinds)[:_LINES]
