"""Run by Python when it starts, where ``resilient run --save`` put it on the path.

Nothing of ours is loaded before the program imports Keras. A ``sitecustomize`` that
this one hides is run as well.
"""

import importlib
import sys
from pathlib import Path

_HERE = str(Path(__file__).parent)
sys.path[:] = [path for path in sys.path if path != _HERE]
ours = sys.modules.pop("sitecustomize", None)
try:
    importlib.import_module("sitecustomize")
except ImportError:
    if ours is not None:
        sys.modules["sitecustomize"] = ours

try:
    import wrapt
except ImportError:  # another Python than the one that keras-resilient is installed in
    pass
else:

    @wrapt.when_imported("keras")
    def enable(keras: object) -> None:
        """The program has imported Keras."""
        from resilient.training.enabled.api import enable_from_environment

        enable_from_environment()

    @wrapt.when_imported("keras_tuner")
    def wrap_searches(keras_tuner: object) -> None:
        """It is complete only now: it imports Keras while it is imported."""
        from resilient.training.enabled.intercept import wrap_searches

        wrap_searches(keras_tuner)
