"""One server of a TensorFlow cluster, for the task in TF_CONFIG.

It serves a coordinator until its standard input closes, that is, until the process that
started it ends. On a cluster that stops its own servers, use `server.join()` instead.
"""

import sys

import tensorflow as tf

if __name__ == "__main__":
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    # Named, because the server stops when the object is collected.
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
    )
    sys.stdin.read()
