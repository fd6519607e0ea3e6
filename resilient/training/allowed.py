"""Differences from the checkpoint that are intended: the argument ``allow``.

A resume continues despite such a difference, where it would otherwise be refused. It
says once what is no longer exact and which value wins, and every later checkpoint
records it. Between two changes a run is as exact as any other.
"""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from resilient.errors import message
from resilient.state.comparison import Difference

# Which value wins where each differs, and from where on.
WINS = {
    "backend": "all Keras variables are restored; arithmetic, and random numbers that "
    "backends draw themselves, differ from here on",
    "batch_size": "this script's is used from here on; an epoch continues after the "
    "samples already trained",
    "callbacks": "the state of those that match by class and order is restored, the "
    "others start fresh",
    "config": "this script's layers continue with the checkpoint's weights",
    "data": "this script's is used from here on; within an epoch, after as many "
    "samples as were already trained",
    "learning_rate": "this script's is used from here on",
    "metrics": "they start fresh",
    "optimizer": "it starts fresh; the model keeps the checkpoint's weights",
}
NAMES = tuple(WINS)
# A loop has no callbacks, and keeps its learning rate wherever it likes.
OF_LOOPS = tuple(name for name in NAMES if name not in ("callbacks", "learning_rate"))


def checked_allow(
    allow: Collection[str], names: Sequence[str] = NAMES
) -> frozenset[str]:
    """The allowed differences, if all names are valid.

    Raises:
        TypeError: It is not a set of names.
        ValueError: A name does not exist, or not here.
    """
    if isinstance(allow, str) or not isinstance(allow, Collection):
        what = "`allow` must be a set of names."
        hint = 'For example allow={"data"}.'
        raise TypeError(message(what, received=repr(allow), hint=hint))
    if unknown := [name for name in allow if name not in names]:
        raise ValueError(_unknown(unknown[0], names))
    return frozenset(allow)


def _unknown(name: object, names: Sequence[str]) -> str:
    if name in NAMES:
        return message(
            "This name in `allow` is for fit only; Run does not take it.",
            received=repr(name),
            hint=f"Use one of: {', '.join(names)}.",
        )
    near = get_close_matches(str(name), names, 1, 0.5)
    hint = f'Did you mean "{near[0]}"? ' if near else ""
    return message(
        "`allow` has an unknown name.",
        received=repr(name),
        hint=f"{hint}Use one of: {', '.join(names)}.",
    )


def allowing(differences: Sequence[Difference]) -> str:
    """How to accept these differences, as a hint; empty if that is impossible."""
    names = dict.fromkeys(each.of for each in differences)
    if not names or not all(name in NAMES for name in names):
        return ""
    listed = ", ".join(f'"{name}"' for name in names)
    return (
        f" Or pass allow={{{listed}}} to continue with the change, though no longer "
        "exactly."
    )
