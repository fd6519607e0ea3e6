"""What to do about bad losses: ``on_nan``, ``loss_spike``, ``Rollback``."""

from dataclasses import dataclass
from typing import Literal

from resilient.errors import message, require_integer, require_number


@dataclass(frozen=True)
class Rollback:
    """Recover from divergence with PaLM's recipe (Chowdhery et al. 2022, section 5.1).

    Training goes back to ``steps`` batches before the bad one, skips the next ``skip``
    batches of the data, and continues. The last batch of an epoch is never skipped.

    Attributes:
        steps: How many batches to go back.
        skip: How many batches to skip from there. It must exceed ``steps``, or the bad
            batch would be trained again.
        limit: How many rollbacks a run may have; at the next one, training stops.

    Raises:
        TypeError: One of them is not an integer.
        ValueError: One is not positive, or ``skip`` not more than ``steps``.
    """

    steps: int = 100
    skip: int = 300
    limit: int = 3

    def __post_init__(self) -> None:
        for name in ("steps", "skip", "limit"):
            checked = require_integer(getattr(self, name), f"Rollback({name}=...)")
            object.__setattr__(self, name, checked)
        if self.skip <= self.steps:
            what = "Rollback(skip=...) must reach beyond the bad batch."
            received = f"skip={self.skip}, steps={self.steps}"
            raise ValueError(
                message(
                    what, received=received, hint="Make `skip` larger than `steps`."
                )
            )


OnNaN = Literal["ignore", "stop", "rollback"] | Rollback


def checked_on_nan(value: OnNaN) -> Literal["ignore", "stop"] | Rollback:
    """``on_nan`` if it is valid; otherwise ValueError."""
    if isinstance(value, Rollback):
        return value
    if isinstance(value, str) and value == "rollback":
        return Rollback()
    if isinstance(value, str) and value in ("ignore", "stop"):
        return value
    raise ValueError(
        message(
            '`on_nan` must be "ignore", "stop", "rollback" or a Rollback(...).',
            received=repr(value),
        )
    )


def checked_loss_spike(value: float | None, on_nan: OnNaN) -> float | None:
    """``loss_spike`` if it is valid; otherwise TypeError or ValueError."""
    if value is None:
        return None
    factor = require_number(value, "loss_spike")
    if factor <= 1:
        what = "`loss_spike` must be a factor above 1."
        raise ValueError(
            message(what, received=value, hint="Use a number such as 5, or None.")
        )
    if on_nan == "ignore":
        what = '`loss_spike` has no effect while on_nan is "ignore".'
        todo = 'Pass on_nan="stop" or on_nan="rollback", too.'
        raise ValueError(
            message(what, received=f"loss_spike={value}, on_nan='ignore'", hint=todo)
        )
    return factor
