"""Shows functions with the parameters of a dataclass: to editors, checkers, ``help``.

A dataclass that declares the parameters of a call is never made by that call: it passes
on only what its caller gave.
"""

import inspect
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_ENTRY = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
_HERE = re.compile(r"^    \.\.\.: .+$", re.MULTILINE)


def shown_as(
    declared: Callable[P, Any],
) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the parameters of a dataclass."""
    return shown_with(declared)


def method_shown_as(
    declared: Callable[P, Any],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Give a method the parameters of a dataclass, after ``self``."""
    return shown_with(declared)


def shown_with(declared: Any) -> Callable[[T], T]:
    """Show a function or a class with the fields of a dataclass, beside its own.

    They take the place of ``*args``, ``**kwargs`` and ``**options``, and what describes
    them that of a line ``...: ...`` in the docstring. Of two with one name, its own is
    shown.
    """
    ours = inspect.signature(declared).parameters

    def show(shown: Any) -> Any:
        function = vars(shown)["__init__"] if isinstance(shown, type) else shown
        own = inspect.signature(function)
        each = {**own.parameters, **ours, **own.parameters}
        names = [name for name in each if name not in ("args", "kwargs", "options")]
        every = sorted((each[name] for name in names), key=attrgetter("kind"))
        function.__signature__ = own.replace(parameters=every)
        lines = [f"    {name}: {text}" for name, text in described(declared).items()]
        text = inspect.cleandoc(shown.__doc__ or "")
        shown.__doc__ = _HERE.sub(lambda _: "\n".join(lines), text)
        return shown

    return show


def described(declared: type) -> dict[str, str]:
    """What the docstrings of a dataclass and its bases say of each field."""
    texts: dict[str, str] = {}
    for cls in reversed(inspect.getmro(declared)):
        texts.update(_ENTRY.findall(inspect.cleandoc(cls.__doc__ or "")))
    names = inspect.signature(declared).parameters
    return {name: texts[name] for name in names if name in texts}
