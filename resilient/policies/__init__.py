"""When to save and what to keep, as small values that combine with ``|``.

Policies are pure: time, progress and the cost of a save are arguments, nothing here
reads a clock, a disk or a model. An impossible policy is refused when it is made, not
at the first save. Everything above may import it.
"""

from resilient.policies.interval import Adaptive, Cost
from resilient.policies.keep import KeepPolicy, best, keep_policy, latest, one_per
from resilient.policies.save import SaveFreq, SavePolicy, adaptive, every, save_policy

__all__ = [
    "Adaptive",
    "Cost",
    "KeepPolicy",
    "SaveFreq",
    "SavePolicy",
    "adaptive",
    "best",
    "every",
    "keep_policy",
    "latest",
    "one_per",
    "save_policy",
]
