"""Which settings of a layer only matter while it trains.

The rule: whatever a layer was made with belongs to the function that it computes, and
with another value it is another layer. The exceptions are listed here, and nowhere
else: what only regularises or trains, and how something is computed that stays the
same. Of layers that do nothing outside of training, all settings are such.
"""

import re

# In any layer, also of a user's own.
_NAMES = re.compile(
    # Dropout and noise: names of Keras, and those of models built on it.
    r"rate|\w*drop(out|_path|_rate|_prob)\w*|noise_shape|stddev|stochastic_depth\w*"
    # What is added to the loss, done after a step, or done once at the beginning.
    r"|\w*(regularizer|constraint|initializer)|l1|l2"
    # Moving averages: what they hold is a variable.
    r"|momentum|synchronized|renorm\w*"
    r"|trainable|seed|module"
    # The same function in another kernel.
    r"|unroll|implementation|use_cudnn|flash_attention|autocast"
)

_LAYERS = re.compile(
    r"(Alpha|Gaussian|Spatial)?Dropout(1D|2D|3D)?|GaussianNoise|ActivityRegularization"
    r"|Random(?!Crop)[A-Z]\w*|MixUp|CutMix|AugMix|RandAugment"
)


def is_training_only(layer: str, setting: str) -> bool:
    """Whether a layer of this class computes the same with another value of this."""
    names = _NAMES.fullmatch(setting)
    return names is not None or _LAYERS.fullmatch(layer) is not None
