"""A run in an object store, with a directory on a local disk in front of it.

Parts, from the outside in:

    tiered     the store of checkpoints that the rest of the library uses
    uploader   copies what was saved near to the far tier, beside the training
    near       which attempts on the run the local directory has followed
    far        the checkpoints in the object store
    claims     who owns a run, and which checkpoints are still part of it
    objects    single objects: requests, tried again, in parts, within limits
    driver     what fsspec has for a kind of store
    options    what the user may choose
    address    s3://bucket/run

Training reads and writes only the local directory. A remote commit is one small object,
the manifest, written last; objects are never renamed and never overwritten, except
``claims.json``, which says whose checkpoints count.
"""
