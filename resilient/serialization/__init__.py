"""Python values as JSON and arrays, exactly, without pickle.

``json_values`` encodes, ``decoding`` decodes; ``json_types`` has the codecs of single
types, ``json_arrays`` those of arrays, ``rng`` those of random generators; ``classes``
knows which objects are just their attributes, and ``known`` which classes and functions
a value may refer to; ``schema`` reads dataclasses. Unknown values are refused, naming
their place. Every layer above may import it.
"""

import math
from typing import Any

JSON = dict[str, Any]  # an object
Encoded = Any  # any value


def strict(value: float) -> float | str:
    """A float in strict JSON, which has no NaN; ``float()`` reads either form back."""
    return value if math.isfinite(value) else str(value)
