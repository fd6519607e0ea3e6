"""Whether each process trains all that its data gives it.

So it is where Keras itself trains several processes: on JAX, and on torch since 3.16.
Elsewhere all draw the same batches, and each trains its part of them.
"""

import keras

from resilient import keras_internals

BACKEND = keras.backend.backend()
OWN_DATA_BACKENDS = ["jax"]
if keras_internals.generation.trains_on_ranks:
    OWN_DATA_BACKENDS.append("torch")
OWN_DATA = BACKEND in OWN_DATA_BACKENDS
# Keras 3.12 on JAX does not tell which part of a batch is a process's.
NO_PARTS = BACKEND == "jax" and not hasattr(
    keras.distribution.DataParallel, "num_model_replicas"
)
