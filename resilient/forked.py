"""What a process does first that was forked from one of ours."""

import os
from collections.abc import Callable


def in_forked_child(function: Callable[[], None]) -> Callable[[], None]:
    """Call a function in each process that is forked from this one."""
    if hasattr(os, "register_at_fork"):  # Windows forks nothing
        os.register_at_fork(after_in_child=function)
    return function
