"""One server of a TensorFlow cluster: the task that TF_CONFIG says.

It does what a coordinator asks for until its standard input ends, which it does with
the process that started it. Where a cluster ends its servers: `server.join()`.
"""

import sys

import tensorflow as tf

if __name__ == "__main__":
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    # Ends with the object, so it has a name.
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
    )
    sys.stdin.read()
