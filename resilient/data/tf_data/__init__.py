"""tf.data pipelines: on TensorFlow, and iterated from Python on JAX and PyTorch."""
