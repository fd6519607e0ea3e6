"""Makes a resumed process compile what the interrupted one had compiled.

What a compiled step computes may depend on the sizes of earlier batches: TensorFlow
since Keras 3.16 (see ``traces``) and ``torch.compile`` compile for one size, and for
all sizes once a second one comes. The two may round differently. A run begins with a
full batch; a resumed process may begin with the smaller last batch of an epoch.
"""

import logging
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from resilient.backends.base import Backend
from resilient.errors import warn_not_exact
from resilient.keras_internals import BACKEND, traces
from resilient.serialization import JSON
from resilient.state.build import keras_own, without_a_trace
from resilient.state.rng import kept_random_state

logger = logging.getLogger(__name__)


class Retracing:
    """What a resumed process still has to compile.

    TensorFlow traces before the first batch comes. JAX compiles for each size
    separately, and so has nothing to repeat.

    Attributes:
        of_steps: Whether ``before_step`` is to be called.
    """

    of_steps = False

    def __init__(self, model: keras.Model, backend: Backend) -> None:
        self._model, self._backend = model, backend
        self._missing: JSON = {}
        self._begun: set[str] = set()

    def now(self) -> JSON:
        """Sizes by function name in the order of compilation, for a checkpoint."""
        return self._missing | traces.of(self._model)

    def expect(self, traces: Mapping[str, Any]) -> None:
        """Compile again what ``now`` returned when the checkpoint was taken."""
        self._missing = dict(traces)

    def before_batches(self, name: str, iterator: Any) -> None:
        """A function of the model is about to be called with Keras's iterator."""
        if BACKEND != "tensorflow" or name in self._begun:
            return
        self._begun.add(name)
        shapes = self._missing.pop(name, None)
        with kept_random_state(self._backend):
            spec = keras_own(iterator).element_spec
            if not traces.matter(self._model):
                traces.forget_others(self._model, name, spec)
            elif shapes and not traces.retrace(self._model, name, shapes, spec):
                self._say(name)

    def before_step(self, name: str, batches: Any) -> None:
        """A function of the model is about to be called with a list of one batch."""

    def _say(self, name: str) -> None:
        warn_not_exact(
            "the model could not be recompiled for the batch sizes seen before the "
            "interruption, so results may round differently",
            [name],
        )


class TorchRetracing(Retracing):
    """Runs steps on blank batches of those sizes at the first batch, and undoes them.

    ``torch.compile`` compiles nothing before it is called. It remembers the sizes of
    all models in the process: each fit, and each rollback, resets it.
    """

    def __init__(self, model: keras.Model, backend: Backend) -> None:
        super().__init__(model, backend)
        self.of_steps = bool(model.jit_compile) and not model.run_eagerly
        self._known: dict[str, list[Any]] = {}
        self._last: tuple[str, list[Any], int] | None = None
        if self.of_steps and _compiled():
            import torch

            torch.compiler.reset()

    def now(self) -> JSON:
        self._record()
        known = {name: list(shapes) for name, shapes in self._known.items()}
        return self._missing | known

    def before_step(self, name: str, batches: Any) -> None:
        self._record()
        missing = self._missing.pop(name, [])
        if any(len(shapes) != len(keras.tree.flatten(batches)) for shapes in missing):
            missing = []
            self._say(name)
        for shapes in missing:
            self._step(name, shapes, batches)
            self._record()
        self._last = name, _shapes(batches), _compiled()

    def _step(self, name: str, shapes: list[Any], batches: Any) -> None:
        """Call a function with blank batches of these shapes, like the given ones."""
        self._last = name, shapes, _compiled()
        rest = iter(shapes)
        try:
            blank = keras.tree.map_structure(lambda x: _blank(x, next(rest)), batches)
            with without_a_trace(self._model, self._backend):
                getattr(self._model, name)(blank)
        except Exception:  # a custom step may raise anything on zeros
            logger.debug("a step on blank batches failed", exc_info=True)
            self._say(name)

    def _record(self) -> None:
        """Record the last batch, if something was compiled for it."""
        if self._last is None:
            return
        (name, shapes, before), self._last = self._last, None
        known = self._known.setdefault(name, [])
        if _compiled() > before and shapes not in known:
            known.append(shapes)


def of(model: keras.Model, backend: Backend) -> Retracing:
    """The implementation for this backend."""
    return (TorchRetracing if BACKEND == "torch" else Retracing)(model, backend)


def _shapes(batches: Any) -> list[list[int] | None]:
    return [
        list(map(int, each.shape)) if hasattr(each, "shape") else None
        for each in keras.tree.flatten(batches)
    ]


def _blank(like: Any, shape: list[int] | None) -> Any:
    if shape is None:
        return like
    if isinstance(like, np.ndarray):
        return np.zeros(shape, like.dtype)
    return like.new_zeros(shape)


def _compiled() -> int:
    """How much ``torch.compile`` has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
