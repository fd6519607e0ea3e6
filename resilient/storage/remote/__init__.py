"""A run in an object store, with a directory on a local disk in front of it.

Parts, from the outside in:

    tiered      the store of checkpoints that the rest of the library uses
    uploader    copies what was saved locally to the object store, beside the training
    ownership   claims the run, and makes the local directory a copy of it
    remote_run  the checkpoints in the object store
    claims      who owns a run, and which checkpoints are still part of it
    objects     single objects: requests, tried several times, within limits
    options     what the user may choose
    address     s3://bucket/run

Training reads and writes only the local directory. A remote commit is one small object,
the manifest, written last; objects are never renamed and never overwritten, except
``claims.json``, which says whose checkpoints count.
"""
