"""Run by Python when it starts, where ``resilient run --save`` put it on the path.

Nothing of ours is loaded before the program imports Keras. A ``sitecustomize`` that
this one hides is run as well.
"""

import contextlib
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

sys.path.remove(os.path.dirname(__file__))
hidden = PathFinder.find_spec("sitecustomize")
if hidden is not None and hidden.loader is not None:
    hidden.loader.exec_module(module_from_spec(hidden))

# This may be another Python than the one that keras-resilient is installed in.
with contextlib.suppress(ImportError):
    import wrapt

    @wrapt.when_imported("keras")
    def enable(keras: object) -> None:
        """The program has imported Keras."""
        from resilient.training.enabled.api import enable_from_environment

        enable_from_environment()
