"""Witnesses: proof that a resumed run repeats what the killed one trained.

Each step leaves a few words in a file that outlives a kill (``ring``): its loss, and
now and then digests of weights and of the batch (``samples``). The batches between the
checkpoint and the kill are trained again after a resume, and are compared with these
words by ``witness``, which training calls.
"""

from typing import Literal

OnInexact = Literal["raise", "warn"]
