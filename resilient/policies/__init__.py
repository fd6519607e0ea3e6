"""When to save and what to keep, as small values that combine with ``|``.

Policies are pure: time, progress and what a save costs are arguments, nothing here
reads a clock, a disk or a model. A policy that could never mean anything is refused
when it is made, not at the first save.
"""

from resilient.policies.auto import Auto, Cost
from resilient.policies.keep import KeepPolicy, best, keep_policy, latest, spaced
from resilient.policies.save import SaveFreq, SavePolicy, auto, every, save_policy

__all__ = [
    "Auto",
    "Cost",
    "KeepPolicy",
    "SaveFreq",
    "SavePolicy",
    "auto",
    "best",
    "every",
    "keep_policy",
    "latest",
    "save_policy",
    "spaced",
]
