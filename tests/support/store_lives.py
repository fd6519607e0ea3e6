"""What machines do to a run in an object store, in children that may be killed.

They come from a fork server that has imported the drivers. This module imports no
pytest, since each of them imports it.
"""

import os
import sys
from itertools import count
from pathlib import Path

from resilient.errors import DirectoryInUseError
from resilient.policies import latest
from resilient.storage.remote.options import Upload
from resilient.storage.stores import store_of
from support.checkpoint_kills import FORKS
from support.checkpoint_samples import holds, newest_good, save

FORKS.set_forkserver_preload(
    ["resilient.storage.stores", "stamina", "s3fs", "gcsfs", "adlfs"]
)

# Or gcsfs asks a service that the emulator lacks what kind of bucket it is: it reads
# this when it is imported, in the fork server.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

IN_USE = 17  # how a process ends that another one has stopped


class Machine:
    """A local directory, and the store of a run as somebody opens it there.

    Args:
        near: The local directory.
        address: Of the run.
        options: Of the driver.
        patience: Of requests, in seconds.
    """

    def __init__(self, near, address, options, patience=20):
        self.near = Path(near)
        upload = Upload(patience=patience, storage_options=options)
        self.store = store_of(address, near, upload)

    def goes_on(self, steps=1):
        """Save some more checkpoints; the step of the one before them, or 0."""
        with self.store.opened():
            found = newest_good(self.store)
            assert found is None or holds(found)
            begin = 0 if found is None else found.step
            for step in range(begin + 1, begin + 1 + steps):
                self.saves(step)
        return begin

    def saves(self, step, *, version=0, keep=1):
        """Save a checkpoint, and wait until it is uploaded."""
        save(self.store, step, version=version)
        self.store.prune(latest(keep))
        assert not self.waits()

    def waits(self):
        """Wait for uploads; which could not be done, in words."""
        while not self.store.uploaded(1):
            pass
        return self.store.not_uploaded()

    def finds(self):
        """The newest checkpoint, for somebody who only looks."""
        with self.store.locked():
            return newest_good(self.store)


def live(folder, run, environment, victim):
    """One machine saves the first checkpoint, and another one the second."""
    os.environ |= environment
    Path(victim).write_text(str(os.getpid()))
    for name in ("first", "second"):
        Machine(folder / name, *run).goes_on()
    os._exit(0)


def write(near, run, environment, version, keep, begin, alone):
    """Write to a run until another one does not any more, or take its end.

    Args:
        near: The local directory.
        run: Address and options.
        environment: Of the driver.
        version: Of what is saved.
        keep: How many checkpoints are kept, and saved in the end.
        begin: A barrier for those who begin at the same time.
        alone: Set when the other one has ended.
    """
    os.environ |= environment
    machine, left = Machine(near, *run), keep
    begin.wait()
    try:
        with machine.store.opened():
            found = newest_good(machine.store)
            for step in count(1 if found is None else found.step + 1):
                left -= alone.is_set()
                machine.saves(step, version=version, keep=keep)
                if not left:
                    break
    except DirectoryInUseError:
        alone.set()
        sys.exit(IN_USE)
