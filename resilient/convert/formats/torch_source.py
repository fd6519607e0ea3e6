"""A ``state_dict`` that torch saved: a flat dict of tensors.

Of a Keras model on torch, or of anything that calls tensors by the variables' paths.
"""

from pathlib import Path

import keras
import numpy as np

from resilient.convert.formats import library
from resilient.convert.formats.matching import by_name, paths
from resilient.errors import NotSupportedError

# Keras's layers keep their parameters under this name, and paths in it; models list
# those of layers once more.
_KERAS = "_torch_params."


def values(path: Path, model: keras.Model) -> dict[str, np.ndarray]:
    """The values in the file, see ``sources.ImportSource.values``."""
    torch = library("torch")
    from resilient.backends.torch import to_numpy

    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not all(
        isinstance(each, torch.Tensor) for each in content.values()
    ):
        raise NotSupportedError(
            "This file of torch holds something else than a dict of tensors.",
            received=path,
            hint="Save model.state_dict() alone, and import that.",
        )
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in content.items():
        key = str(name).rpartition(_KERAS)[2]
        array = to_numpy(tensor.detach().contiguous())
        if key in tensors and tensors[key].tobytes() != array.tobytes():
            raise NotSupportedError(
                "Two tensors with different values are of one variable.",
                received=f"{path}: {key}",
                hint="Give each variable of the model a name of its own.",
            )
        tensors[key] = array
    return by_name(path, tensors, paths(model), model)
