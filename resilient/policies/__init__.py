"""When to save and what to keep, as small values that combine with ``|``.

Policies are pure: time, progress and the cost of a save are arguments, and nothing here
reads a clock, a disk or a model. An invalid policy is refused when it is created, not
at the first save. Every layer above may import this one.
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
