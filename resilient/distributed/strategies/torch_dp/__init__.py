"""Data parallelism for Keras before 3.16, whose torch backend trains in one process.

Every rank begins with rank 0's weights and trains its rows of each batch, and the
optimizers apply the mean of all ranks' gradients. Later Keras does this by itself, with
torch's ``DistributedDataParallel``: delete this folder together with Keras 3.15.

Only ``resilient.distributed.strategies.torch`` imports it, for such a Keras.
"""
