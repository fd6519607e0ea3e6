"""Grain's worker processes need absl flags that a plain script does not parse.

Backends: jax
Needs: grain
"""

import sys

import grain

data = grain.MapDataset.range(4).to_iter_dataset()
data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
try:
    next(iter(data))
except Exception as error:
    print(f"shown: {type(error).__name__}: {error}")
else:
    sys.exit("gone: a worker yielded an element")
