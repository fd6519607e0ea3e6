"""Python values as JSON and arrays, exactly, without pickle.

``json_values`` encodes, ``decoding`` decodes; ``json_types`` has the codecs of single
types, ``json_arrays`` those of arrays, ``rng`` those of random generators; ``classes``
knows which objects are just their attributes, and ``known`` which classes and functions
a value may refer to; ``schema`` reads dataclasses. Unknown values are refused, naming
their place. Every layer above may import it.
"""

from typing import Any

JSON = dict[str, Any]  # an object
Encoded = Any  # any value
