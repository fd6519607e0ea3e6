"""Errors for calls in the wrong place and for ambiguous data."""

from typing import Any

from resilient.errors import ResilientError, message


def wrong_place_error(what: str, todo: str) -> ResilientError:
    """The error for ``run.what``; ``todo`` says where it belongs."""
    name = "`with run`" if what == "with" else f"run.{what}"
    return ResilientError(f"{name} cannot be used here.", hint=todo)


def require_batches(data: list[Any], batch_size: object, shuffle: object) -> None:
    """Check that a list is a list of batches, to be used as they are.

    Raises:
        TypeError: Its items could also be arrays to split into batches.
        ValueError: An argument asks to split or shuffle them.
    """
    kind = next((type(each).__name__ for each in data if not _is_batch(each)), None)
    if kind is not None:
        raise TypeError(
            message(
                "A list of arrays is ambiguous: they could be the arrays of one "
                "dataset, or one batch each.",
                received=f"a list of {len(data)}, with a {kind} in it",
                hint="For arrays pass a tuple, (x, y). For batches put each in a "
                "tuple: [(x0,), (x1,), ...] or [(x0, y0), (x1, y1), ...].",
            )
        )
    asked = {"batch_size": batch_size, "shuffle": shuffle or None}
    if name := next((name for name, value in asked.items() if value is not None), None):
        raise ValueError(
            message(
                f"`{name}` is for arrays: a list of batches is iterated as it is.",
                received=f"{name}={asked[name]!r}, and a list of {len(data)} batches",
            )
        )


def _is_batch(item: Any) -> bool:
    """Whether it can only be a batch, and not an array or rows of one."""
    if isinstance(item, list):  # what a torch DataLoader makes of a tuple
        return bool(item) and all(hasattr(part, "shape") for part in item)
    return isinstance(item, tuple | dict)
