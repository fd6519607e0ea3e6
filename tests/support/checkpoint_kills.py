"""What children do to a checkpoint directory until they are killed.

Children come from a fork server: they start in a clean interpreter in milliseconds,
whatever threads the backend under test has started in this one. This module imports
no pytest, since each of them imports it.
"""

import errno
import multiprocessing
import os
import signal
import sys

from resilient.errors import CheckpointWriteError, DirectoryInUseError
from resilient.policies import latest
from resilient.storage.lock import DirectoryLock
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.store import Store
from support.checkpoint_samples import (
    at_call,
    before_disk_calls,
    newest_good,
    save,
)
from support.full_disk import no_file_beyond

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [f"resilient.{name}" for name in ("saving.choose", "distributed.rendezvous")]
)


def in_child(function, *arguments):
    """Run a function of a module in a child; returns its exit code, -9 if killed."""
    child = FORKS.Process(target=function, args=arguments)
    child.start()
    child.join()
    return child.exitcode


def kill_me(_name=None):
    os.kill(os.getpid(), signal.SIGKILL)


def first_save(directory):
    save(Store(directory), 30)


def next_save(directory):
    """What training does at a save."""
    store = Store(directory)
    save(store, 30)
    store.prune(latest(2))


def replacing_save(directory):
    save(Store(directory), 20, version=1)


def only_prune(directory):
    Store(directory).prune(latest(1))


def start_after_a_kill(directory):
    """What a new attempt does first, with leftovers of each sort around."""
    store = Store(directory)
    remove_stale_staging(store.directory)
    newest_good(store)


def killed_at(number, change, directory):
    """Kills itself at the n-th call that may change the disk."""
    with before_disk_calls(at_call(number, kill_me)):
        change(directory)


def killed_over_an_image(number, change, directory):
    """The same where no directory that is there by now can be renamed."""
    below = {os.path.join(directory, name) for name in os.listdir(directory)}
    rename = os.rename

    def renamed(source, target, **keywords):
        if os.fspath(source) in below:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        rename(source, target, **keywords)

    os.rename = renamed
    killed_at(number, change, directory)


def saving_on_and_on(directory, first, ready):
    """Saves and prunes until it is killed."""
    store = Store(directory)
    remove_stale_staging(store.directory)
    newest_good(store)
    ready.set()
    for step in range(first, sys.maxsize):
        save(store, step)
        store.prune(latest(2))


def save_with_limit(directory):
    """No file may grow beyond 10 kB."""
    no_file_beyond(10_000)
    try:
        save(Store(directory), 30)
    except CheckpointWriteError as error:
        clear = error.__cause__.errno == errno.EFBIG and "ulimit -f" in str(error)
        sys.exit(17 if clear else 1)


def save_without_permission(directory):
    """Gives up being root, if it is, then saves."""
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    store = Store(directory)
    for change in (lambda: save(store, 30), lambda: store.prune(latest(1))):
        try:
            change()
        except CheckpointWriteError as error:
            clear = "Permission denied" in str(error) and str(directory) in str(error)
        else:
            clear = False
        if not clear:
            sys.exit(1)
    assert newest_good(store, lambda *_: sys.exit(2)).step == 20
    sys.exit(17)


def saving_with_lock(directory, first, ready):
    """The same as an attempt does it, which holds the lock."""
    with DirectoryLock(directory):
        saving_on_and_on(directory, first, ready)


def hold_lock(directory, ready, end):
    with DirectoryLock(directory):
        ready.set()
        end.wait()


def try_lock(directory):
    """Exits with 17 if another has the lock."""
    try:
        DirectoryLock(directory).acquire()
    except DirectoryInUseError:
        sys.exit(17)


def hold_and_fork(directory, alive, end):
    """Forks a child while holding the lock; with pipes, dies and leaves it behind."""
    lock = DirectoryLock(directory)
    lock.acquire()
    if os.fork() == 0:
        if alive is None:
            lock.release()
        else:
            alive.send(os.getpid())
            end.recv()
            alive.send("ended")
        os._exit(0)
    if alive is not None:
        kill_me()
    os.wait()
    if in_child(try_lock, directory) != 17:
        sys.exit(1)
