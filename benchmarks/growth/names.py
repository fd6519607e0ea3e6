"""Names of what is measured, for those who measure and for those who print."""

MEMORY = "memory (GB)"
# Of these, the documentation shows the best.
PEERS = (
    *("BackupAndRestore", "ModelCheckpoint", "torch.save"),
    *("tf.train.Checkpoint", "Orbax Checkpointer"),
)
SUBJECTS = ("resilient", *PEERS)  # ours is always measured first
