"""Knows which settings of a layer matter only while it trains.

The rule: every constructor argument of a layer belongs to the function that it
computes, and with a different value it is a different layer. The exceptions are listed
here and nowhere else: settings that only regularise or train, and those that select how
the same result is computed. For layers that do nothing outside training, all settings
are exceptions.
"""

import re

# In any layer, including custom ones.
_NAMES = re.compile(
    # Dropout and noise: names in Keras and in models built on it.
    r"rate|\w*drop(out|_path|_rate|_prob)\w*|noise_shape|stddev|stochastic_depth\w*"
    # Added to the loss, done after a step, or done once at the start.
    r"|\w*(regularizer|constraint|initializer)|l1|l2"
    # Moving averages, whose contents are variables.
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
