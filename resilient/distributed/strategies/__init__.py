"""Adapts distributed training with TensorFlow, JAX and PyTorch: a module for each."""
