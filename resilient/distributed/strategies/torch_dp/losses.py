"""Refuses losses whose averaged gradients are not those of the whole batch.

Each rank computes the loss of its rows, and all have equally many: the average is right
for a mean over rows, Keras's default. For a sum it is too small, and if each rank
weights its mean by its own rows, it differs. Keras does so wherever a mask reaches the
loss; that is a warning, not an error, because TensorFlow's strategies do the same.
"""

from collections.abc import Iterator

import keras

from resilient import keras_internals
from resilient.errors import NotSupportedError, warn_not_exact

_MEANS = ("sum_over_batch_size", "mean")


def refuse_sums(model: keras.Model) -> None:
    """Raise unless the losses of a compiled model are means over the rows of a batch.

    Raises:
        NotSupportedError: Names each loss and each layer.
    """
    found = list(_found(model))
    if found:
        raise NotSupportedError(
            "With several processes, losses must be means over the rows of a batch: "
            "gradients are averaged.",
            received=", ".join(found),
            hint='Use losses with reduction="sum_over_batch_size", and no '
            "activity_regularizer, which sums over rows.",
        )


def warn_of_masks(model: keras.Model) -> None:
    """Warn if a loss is a mean over the unmasked rows of a rank.

    Args:
        model: The built model.
    """
    masked = _masked(model)
    if masked:
        warn_not_exact(
            "a masked loss is averaged over each process's unmasked rows and then "
            "over the processes, which is not quite the mean over the whole batch "
            "that one process computes (a resume is still exact)",
            masked,
        )


def _masked(model: keras.Model) -> list[str]:
    outputs = getattr(model, "outputs", None)
    if outputs:  # a graph of layers, whose masks can be followed
        found = [keras_internals.get_keras_mask(output) for output in outputs]
        return [f"output {i}" for i, mask in enumerate(found) if mask is not None]
    return [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False)
    ]


def _found(model: keras.Model) -> Iterator[str]:
    for loss in keras.tree.flatten(getattr(model, "loss", None)):
        if isinstance(loss, keras.losses.Loss) and loss.reduction not in _MEANS:
            yield f"{loss.name} with reduction={loss.reduction!r}"
    for layer in model._flatten_layers():
        if getattr(layer, "activity_regularizer", None) is not None:
            yield f"activity_regularizer of {layer.name}"
