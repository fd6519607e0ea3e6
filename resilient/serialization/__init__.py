"""Python values as JSON and arrays, exactly, without pickle.

``json_values`` encodes and ``decoding`` decodes, both by the table of types that
``json_types`` begins and ``json_classes`` completes; ``json_arrays`` has the codec of
arrays, ``rng`` those of random generators; ``classes`` knows which objects are just
their attributes, and which classes and functions a value may refer to; ``schema`` reads
dataclasses. Unknown values are refused, naming their place. Every layer above may
import it.
"""

from typing import Annotated, Any, TypedDict

from msgspec import Meta

JSON = dict[str, Any]  # an object
Encoded = Any  # any value

# Kinds of content, of which some can be made anew; and what else can.
_EITHER = "ndarray|value|tensor|key|random"
_CONTENT = "generator|variable|state_dict|table|long|file|array|shared|subclass"
_NEW = "object|list|dict|deque|OrderedDict|Counter|defaultdict"
Kind = Annotated[str, Meta(pattern=rf"\A({_EITHER}|{_CONTENT})\Z")]
Made = Annotated[str, Meta(pattern=rf"\A({_EITHER}|{_NEW})\Z")]


class Entry(TypedDict, total=False):
    """What a checkpoint has of one object.

    ``attributes`` are those that changed, ``gone`` those that were deleted; ``items``
    are all items, and ``content`` the kind and the content of a leaf. An object that
    training made has ``made``: what to make, and an argument.
    """

    attributes: dict[str, Any]
    gone: list[str]
    items: Any
    content: tuple[Kind, Any]
    made: tuple[Made, Any]


# By home, the path at which an object was met first.
Entries = dict[str, Entry]
