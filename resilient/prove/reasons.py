"""Why two ends differ: the likely ones of the known causes, with the evidence.

First whether the script repeats at all when nobody kills it, and whether its batches
do. Then the first leaf that differs, what the run itself warned of, and lines of the
script.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from resilient.prove.recorded import Difference
from resilient.prove.suspects import Kind, Suspect


@dataclass(frozen=True)
class Evidence:
    """What is known of a script whose ends differ.

    Attributes:
        first: Where the killed run first differs, if anywhere.
        repeats: Where a second run that nobody kills differs from the first; None:
            nowhere.
        batches: The same of the batches alone; None: nowhere, or it is not known.
        resumed_batches: Where batches differ after kills, and not without.
        warnings: What runs warned would not be exact.
        suspects: Lines of the script.
        seeds: Whether the script sets the seed of everything.
    """

    first: Difference | None
    repeats: Difference | None
    batches: Difference | None
    resumed_batches: Difference | None
    warnings: Sequence[str] = ()
    suspects: Sequence[Suspect] = ()
    seeds: bool = True


@dataclass(frozen=True)
class Reason:
    """A likely cause.

    Attributes:
        text: In words, with what to do.
        lines: Of the script, or of warnings, that speak for it.
    """

    text: str
    lines: tuple[str, ...] = field(default=())


def reasons(known: Evidence) -> list[Reason]:
    """The likely causes, the likeliest first."""
    return list(_without_kills(known) if known.repeats else _after_kills(known))


def _without_kills(known: Evidence) -> Iterable[Reason]:
    """The script does not repeat, even if nobody kills it."""
    assert known.repeats is not None
    at = known.repeats.place
    began = "The script gives other results each time, even if it is not killed: "
    if not at.step and not known.seeds:
        yield Reason(
            f"{began}its first weights are random, and no seed is set. Call "
            "keras.utils.set_random_seed(0) before the model is built.",
            _lines(known, "unseeded"),
        )
    elif not at.step and not known.batches:
        yield Reason(
            f"{began}it differs before the first step, in {_leaves(known.repeats)}.",
            _lines(known, "unseeded", "time", "attempts"),
        )
    if known.batches is not None:
        yield Reason(
            f"{began}its data is not seeded. Batches differ from "
            f"{known.batches.place} on. Give each random generator of the data a seed.",
            _lines(known, "unseeded", "workers"),
        )
    elif at.step:
        time = _lines(known, "time", "attempts")
        if time:
            yield Reason(
                f"{began}it depends on the time, on the process, or on files that it "
                "finds.",
                time,
            )
        yield Reason(
            f"{began}batches are the same, and at {at} {_leaves(known.repeats)} "
            "differs: an operation is not deterministic. Call "
            "resilient.deterministic(seed=0) first.",
        )


def _after_kills(known: Evidence) -> Iterable[Reason]:
    """The script repeats, unless it is killed."""
    began = "The script repeats if it is not killed, and does not when it resumes: "
    if known.resumed_batches is not None:
        yield Reason(
            f"{began}its data. Batches differ from {known.resumed_batches.place} on: "
            "a generator that keeps state of its own, or random numbers in the workers "
            "of the data.",
            _lines(known, "generator", "workers", "unseeded"),
        )
    if known.warnings:
        yield Reason(
            f"{began}state that is not captured, of which the run warned.",
            tuple(known.warnings),
        )
    leaves = () if known.first is None else known.first.leaves
    callbacks = [name for name in leaves if name.startswith("callbacks/")]
    if callbacks:
        yield Reason(
            f"{began}the state of a callback is not captured completely: "
            f"{', '.join(callbacks)}. Give it state_dict and load_state_dict.",
        )
    if lines := _lines(known, "attempts", "time"):
        yield Reason(
            f"{began}code that depends on the time, on the process, or on the number "
            "of attempts.",
            lines,
        )


def _leaves(difference: Difference) -> str:
    leaves = difference.leaves
    if not leaves:
        return "the state"
    return (
        leaves[0] if len(leaves) == 1 else f"{leaves[0]} (and {len(leaves) - 1} more)"
    )


def _lines(known: Evidence, *kinds: Kind) -> tuple[str, ...]:
    return tuple(str(each) for each in known.suspects if each.kind in kinds)[:5]
