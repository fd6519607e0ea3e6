"""A directory of checkpoints that a kill, a full disk or a flipped bit cannot spoil.

Parts, from the outside in:

    store        finds, verifies, falls back, prunes: what the rest of the library uses
    commit       bytes in a staging directory become a checkpoint, or nothing does
    quarantine   where checkpoints go that must not be used, each with its reason
    checkpoint   one committed directory, and whether it is still what was committed
    manifest     the file that makes a directory a checkpoint
    layout       what is called what in a checkpoint directory
    lock         one living run per directory

Local paths only. Nothing here knows Keras, tensors or backends: what fills a staging
directory is a function that is passed in.
"""
