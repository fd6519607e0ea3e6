"""Small checkpoints with known bytes, and ways to fail while saving them."""

import builtins
import contextlib
import json
import os
import random
from pathlib import Path

from resilient.progress import Progress
from resilient.storage import checkpoint
from resilient.storage.layout import committed_steps
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.store import Store

# In memory where there is such a place: what is killed there did not ask the disk.
RAM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

# Everything through which a commit or a prune changes the disk.
DISK_CALLS = "mkdir open fsync rename replace unlink rmdir truncate".split()  # noqa: SIM905

FILES = (
    "variables/weights.bin",
    "variables/index.json",
    "data/process-0-of-1.json",
    "run.json",
)


def cannot_be_read(monkeypatch, step=None):
    """From now on this user may not read the manifest of a step; None: of any."""

    def refuse(directory, name, limit):
        if step in (None, int(directory.name.removeprefix("step-"))):
            raise PermissionError(13, "Permission denied", str(directory / name))
        return read_file(directory, name, limit)

    read_file = checkpoint.read_file
    monkeypatch.setattr(checkpoint, "read_file", refuse)


def contents(step, version=0):
    """Bytes of every file of the sample checkpoint of a step."""
    generator = random.Random(f"{step}-{version}")
    found = {name: generator.randbytes(20_000 + len(name)) for name in FILES}
    run = json.dumps({"sample": f"{step}-{version}"}).encode()
    return found | {"run.json": run.ljust(20_008)}


def commit(store, progress, write, *, metrics=(), finished=False, environment=()):
    """Make a checkpoint of what `write` puts into a directory."""
    with store.staging(progress) as staging:
        write(os.fspath(staging.path))
        return store.commit(
            staging,
            staging.seal([]),
            metrics=dict(metrics),
            finished=finished,
            environment=dict(environment),
        )


def writer(step, version=0):
    """A `write` for `commit`."""

    def write(staging):
        for name, data in contents(step, version).items():
            path = Path(staging, name)
            if not path.parent.is_dir():
                path.parent.mkdir()
            path.write_bytes(data)

    return write


def save(store, step, *, version=0, metrics=None, finished=False):
    """Commit the sample checkpoint of a step, ten steps an epoch."""
    return commit(
        store,
        Progress(step, step // 10, step % 10),
        writer(step, version),
        metrics=metrics or {},
        finished=finished,
        environment={"keras": "3.15.1"},
    )


def save_run(store, run):
    """Commit a checkpoint of step 20 that has this ``run.json`` and nothing else."""
    raw = run if isinstance(run, bytes) else json.dumps(run).encode()

    def write(staging):
        Path(staging, "run.json").write_bytes(raw)

    commit(store, Progress(20, 1, 0), write)


def _nothing(_checkpoint):
    return None


def newest_good(store, report=None):
    """The newest checkpoint that verifies; newer ones go to quarantine."""
    found = store.load_newest(_nothing, report)
    return None if found is None else found[0]


def verified(store, step):
    """The checkpoint of a step, every byte compared."""
    return store.load(step, _nothing)[0]


def filled(directory, *steps):
    """A store with the sample checkpoints of these steps."""
    store = Store(directory)
    store.directory.mkdir(exist_ok=True)
    for step in steps:
        save(store, step)
    return store


def holds(checkpoint, version=0):
    """Whether a checkpoint has the bytes of its step's sample."""
    return all(
        (checkpoint.path / name).read_bytes() == data
        for name, data in contents(checkpoint.step, version).items()
    )


def steps(store):
    return [checkpoint.step for checkpoint in store.checkpoints()]


def leftovers(directory):
    """Names in a checkpoint directory that only an unfinished change leaves there."""
    parts = (".tmp-", ".old-", "probe-")
    return [name for name in os.listdir(directory) if any(p in name for p in parts)]


@contextlib.contextmanager
def before_disk_calls(action):
    """Call `action(name)` before each call that may change the disk."""
    originals = {name: getattr(os, name) for name in DISK_CALLS}
    opened = builtins.open

    def around(name, call):
        def wrapped(*arguments, **keywords):
            action(name)
            return call(*arguments, **keywords)

        return wrapped

    try:
        builtins.open = around("builtins.open", opened)
        for name, call in originals.items():
            setattr(os, name, around(name, call))
        yield
    finally:
        builtins.open = opened
        for name, call in originals.items():
            setattr(os, name, call)


def at_call(number, act):
    """An action that acts at the n-th call, counted from 1, and counts all."""
    count = 0

    def action(name):
        nonlocal count
        count += 1
        if count == number:
            act(name)

    return action


def usable(directory, *, newest):
    """The directory resumes at one of these steps, with its bytes, and can be saved."""
    store = Store(directory)
    remove_stale_staging(store.directory)
    reports = []
    good = newest_good(store, lambda *what: reports.append(what))
    assert reports == [], "a kill never leaves what looks like damage"
    assert leftovers(directory) == []
    assert (good and good.step) in newest
    for step in committed_steps(store.directory):
        assert any(holds(verified(store, step), version) for version in (0, 1))
    save(store, 40)
    assert holds(newest_good(store))
    return good
