"""Data parallelism for Keras before 3.16, whose torch backend trains in one process.

Every rank begins with rank 0's weights and trains its rows of each batch, and the
optimizers apply the mean of all ranks' gradients. Later Keras does this by itself, with
torch's ``DistributedDataParallel``: this folder goes as a whole when Keras 3.15 does.

``resilient.distributed.strategies.torch`` alone imports it, where Keras needs it.
"""
