"""Peers that keep many checkpoints in a directory: one tensor in each, all kept.

PyTorch has none of its own. All but the first checkpoint are linked to the first one.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from saves import REPEATS, Samples, timed
from state import BACKEND

Do = Callable[[], object]


def measured(size: int, directory: Path) -> Samples:
    """What the same costs the peer of this backend, if there is one."""
    if BACKEND not in _KINDS:
        return {}
    name, kind = _KINDS[BACKEND]
    save, look, resume = kind(size, directory / "peer")
    return {
        f"{name}: save": timed(save),
        f"{name}: list": timed(look, 1),
        f"{name}: resume": timed(resume, 2),
    }


def _orbax(size: int, directory: Path) -> tuple[Do, Do, Do]:
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(max_to_keep=size + REPEATS)
    tree = {"x": np.ones(1, "float32")}

    def new() -> Any:
        return ocp.CheckpointManager(directory, options=options)

    def save(manager: Any, step: int) -> None:
        manager.save(step, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()

    with new() as first:
        save(first, 0)
    for step in range(1, size):
        copy = directory / str(step)
        shutil.copytree(directory / "0", copy, copy_function=os.link)
    manager, steps = new(), iter(range(size, size + REPEATS))

    def resume() -> None:
        with new() as found:
            args = ocp.args.StandardRestore(tree)
            found.restore(found.latest_step(), args=args)

    return lambda: save(manager, next(steps)), lambda: new().all_steps(), resume


def _tensorflow(size: int, directory: Path) -> tuple[Do, Do, Do]:
    import tensorflow as tf

    checkpoint = tf.train.Checkpoint(x=tf.Variable([1.0]))

    def new() -> Any:
        return tf.train.CheckpointManager(checkpoint, directory, size + REPEATS)

    first = Path(new().save(0))
    paths = [str(directory / f"{first.name[:-1]}{step}") for step in range(size)]
    for file in first.parent.glob(f"{first.name}.*"):
        for path in paths[1:]:
            os.link(file, f"{path}{file.name.removeprefix(first.name)}")
    tf.compat.v1.train.update_checkpoint_state(
        *(directory, paths[-1], paths),
        all_model_checkpoint_timestamps=[1.0] * size,
        last_preserved_timestamp=0.0,
    )
    manager, steps = new(), iter(range(size, size + REPEATS))
    assert len(manager.checkpoints) == size
    return (
        lambda: manager.save(next(steps)),
        lambda: new().checkpoints,
        lambda: new().restore_or_initialize(),
    )


_KINDS = {
    "jax": ("Orbax CheckpointManager", _orbax),
    "tensorflow": ("tf.train.CheckpointManager", _tensorflow),
}
