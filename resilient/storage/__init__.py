"""A directory of checkpoints that survives kills, full disks and flipped bits.

Parts, from the outside in:

    store           finds, verifies, falls back: what the rest of the library uses
    prune           deletes what retention does not keep
    commit          turns the bytes in a staging directory into a checkpoint, or nothing
    recovery        finishes changes that a kill interrupted
    directories     moves and deletes checkpoints, where directories can be renamed
    quarantine      holds checkpoints that must not be used, each with its reason
    checkpoint      one committed directory, and whether it is still what was committed
    manifest        the file that makes a directory a checkpoint, and who wrote it
    layout          the names in a checkpoint directory
    lock            one living run per directory
    files           opens, replaces and flushes files, which may be somebody else's
    refusals        the errors of several of them
    scratch         another place for the runs of a process, for ``resilient prove``
    stores          which of the two a checkpoint_dir means: this one, or
    remote/         the same in an object store, with a local directory in front

Nothing here knows about Keras, tensors or backends: callers fill a staging directory,
and hand it back.
"""
