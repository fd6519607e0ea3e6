"""What may be otherwise than in the checkpoint, on purpose: the argument ``allow``.

A resume that meets such a difference goes on where it would be refused by default. It
says once what is not exact any more and which value wins, and each checkpoint from
then on tells of it. Between two changes a run is as exact as any.
"""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from resilient.errors import message, warn_not_exact
from resilient.progress import Progress
from resilient.serialization import JSON
from resilient.state.difference import Difference

# What becomes of each: which value wins, and from where.
_WINS = {
    "backend": "every variable of Keras is what it was; arithmetic, and random numbers "
    "that backends draw themselves, differ from here on",
    "batch_size": "this script's is used from here on; an epoch continues after the "
    "samples already trained",
    "callbacks": "those that match by class and order get their state back, the "
    "others start fresh",
    "config": "this script's layers continue with the checkpoint's weights",
    "data": "this script's is used from here on; within an epoch, after as many "
    "samples as were already trained",
    "learning_rate": "this script's is used from here on",
    "metrics": "they start fresh",
    "optimizer": "it starts fresh; the model keeps the checkpoint's weights",
}
NAMES = tuple(_WINS)
# A loop has no callbacks, and its learning rate is where it keeps it.
OF_LOOPS = tuple(name for name in NAMES if name not in ("callbacks", "learning_rate"))
_MOST = 1000  # changes that a checkpoint tells of


def checked_allow(
    allow: Collection[str], names: Sequence[str] = NAMES
) -> frozenset[str]:
    """What is allowed, if each is one of the names.

    Raises:
        TypeError: They are no set of names.
        ValueError: There is no such name, or not here.
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


class Changes:
    """The differences that one resume goes on with.

    Args:
        allow: The names that are allowed.
        before: What earlier attempts went on with.
        progress: Where this one goes on.

    Attributes:
        found: The names of what differs.
        fresh: The groups of variables that therefore begin as new.
        every: All changes of the run so far, as checkpoints tell of them.
    """

    def __init__(
        self, allow: frozenset[str], before: Sequence[JSON], progress: Progress
    ) -> None:
        self._allow, self._step = allow, progress.step
        self.found: set[str] = set()
        self.fresh: set[str] = set()
        self.every = list(before)

    def refused(self, differences: Sequence[Difference]) -> list[Difference]:
        """Those that are not allowed."""
        return [each for each in differences if each.of not in self._allow]

    def accept(self, differences: Sequence[Difference]) -> None:
        """Go on with these, and warn of them, each once."""
        self.fresh |= {each.group for each in differences if each.group}
        told = {each["line"] for each in self.every if each["step"] == self._step}
        new = [each for each in differences if each.line[:1000] not in told]
        self.found |= {each.of for each in new}
        if not new:
            return
        self.every += [
            {"step": self._step, "of": each.of, "line": each.line[:1000]}
            for each in new
        ]
        del self.every[:-_MOST]
        warn_not_exact(
            f"the run continues from step {self._step:,} with changes that `allow` "
            "accepts",
            [f"{each.line} ({_WINS[each.of]})" for each in new],
        )


def allowing(differences: Sequence[Difference]) -> str:
    """How to go on with these differences; empty where that cannot be."""
    names = dict.fromkeys(each.of for each in differences)
    if not names or not all(name in NAMES for name in names):
        return ""
    listed = ", ".join(f'"{name}"' for name in names)
    return (
        f" Or pass allow={{{listed}}} to continue with the change, no longer exactly."
    )
