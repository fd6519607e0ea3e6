"""Finds the place of a variable in its name, by which variables are matched.

Needs no Keras.
"""

import re

_PLACE = re.compile(r".*?\.\d+(?=\.)")


def place(name: str) -> str:
    """Group, a loop's object, and index; Keras may number the rest differently."""
    found = _PLACE.match(name)
    return found[0] if found else name
