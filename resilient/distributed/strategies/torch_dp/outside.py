"""Weights that were changed outside of averaged steps.

The ranks compare them at the next averaged step: they meet there anyway, and a rank
that waited for the others where it alone changed something would wait forever.
"""

from collections.abc import Mapping, Sequence

from resilient.distributed.strategies.torch_dp.agreement import mark
from resilient.errors import NotSupportedError


class UnsyncedChanges:
    """What this rank changed since the last averaged step.

    Attributes:
        mark: Tells it from what other ranks changed.
    """

    def __init__(self) -> None:
        self.mark = 0
        self._paths: set[str] = set()

    def note(self, changed: Mapping[str, str]) -> None:
        """Take note of these weights, by path, with checksums of their values."""
        if changed:
            self.mark = mark((self.mark, sorted(changed.items())))
            self._paths |= changed.keys()

    def compared(self, *, same: bool) -> None:
        """All ranks told each other.

        Raises:
            NotSupportedError: They did not change the same weights alike.
        """
        paths = sorted(self._paths)
        self.mark, self._paths = 0, set()
        if not same:
            raise not_alike(paths)


def not_alike(paths: Sequence[str]) -> NotSupportedError:
    """The error about weights that this rank changed, and others did not, or so."""
    more = f" and {len(paths) - 3} more" if paths[3:] else ""
    return NotSupportedError(
        "Weights changed, and not on all processes alike: their gradients were not "
        "averaged, or something else changed them (a callback on one process).",
        received=(", ".join(paths[:3]) or "none on this process, but on another")
        + more,
        hint="Use Keras optimizers that are attributes of the model when fit begins, "
        "change weights through their apply, and let callbacks change them on all "
        "processes alike.",
    )
