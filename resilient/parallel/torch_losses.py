"""Refuses losses whose gradients, averaged over the ranks, are not those of the batch.

Each rank computes the loss of its rows, and all have as many: the average is right for
a mean over rows, Keras's default. Of a sum it is too small, and of a mean that each
rank weighs by its own rows it is another one.
"""

from collections.abc import Iterator

import keras

from resilient import keras_internals
from resilient.errors import NotSupportedError, describe

_MEANS = ("sum_over_batch_size", "mean")


def refuse_sums(model: keras.Model) -> None:
    """Raise where the loss of a compiled model is no mean over the rows of a batch.

    Raises:
        NotSupportedError: Names each loss and each layer.
    """
    found = list(_found(model))
    if found:
        raise NotSupportedError(
            describe(
                "With several processes, losses have to be means over the rows of a "
                "batch: gradients are averaged.",
                ", ".join(found),
                'Use losses with reduction="sum_over_batch_size", and leave '
                "activity_regularizer out, which sums over rows.",
            )
        )


def _found(model: keras.Model) -> Iterator[str]:
    for loss in keras_internals.tree.flatten(getattr(model, "loss", None)):
        if isinstance(loss, keras.losses.Loss) and loss.reduction not in _MEANS:
            yield f"{loss.name} with reduction={loss.reduction!r}"
    for layer in model._flatten_layers():
        if getattr(layer, "activity_regularizer", None) is not None:
            yield f"activity_regularizer of {layer.name}"
