"""Python values as JSON and arrays, exactly, without pickle.

``json_values`` encodes and decodes by the table of types in ``json_types``;
``json_arrays`` has the codec of arrays, ``rng`` those of random generators; ``classes``
knows which objects are just their attributes, and which classes and functions a value
may refer to; ``schema`` reads dataclasses. Unknown values are refused, naming their
place. Every layer above may import it.
"""

from typing import Any, TypedDict

JSON = dict[str, Any]  # an object
Encoded = Any  # any value


class Entry(TypedDict, total=False):
    """What a checkpoint has of one object.

    ``attributes`` are those that changed, ``gone`` those that were deleted; ``items``
    are all items, and ``content`` the kind and the content of a leaf. An object that
    training made has ``made``: what to make, and an argument.
    """

    attributes: dict[str, Any]
    gone: list[str]
    items: Any
    content: tuple[str, Any]
    made: tuple[str, Any]


# By home, the path at which an object was met first.
Entries = dict[str, Entry]
