"""Runs functions first thing in forked processes."""

import os
from collections.abc import Callable


def in_forked_child(function: Callable[[], None]) -> Callable[[], None]:
    """Call a function in every process forked from this one."""
    if hasattr(os, "register_at_fork"):  # Windows does not fork
        os.register_at_fork(after_in_child=function)
    return function
