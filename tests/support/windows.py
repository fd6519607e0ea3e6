"""Takes from this process what Windows does not have, after Keras was imported.

What differs is names only: how Windows locks, renames and syncs is not imitated.
"""

import fcntl
import importlib
import os
import shutil
import signal
import sys
import types

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
NAMES = {
    os: """O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC O_DSYNC fdatasync fork
        forkpty getuid geteuid getgid getegid getpgid getpgrp getsid killpg setsid
        WNOHANG WIFEXITED WIFSIGNALED WEXITSTATUS WTERMSIG wait wait3 wait4 pread pwrite
        fchmod fchown chown lchown mkfifo mknod register_at_fork sched_getaffinity
        statvfs uname getloadavg sysconf posix_fadvise""",
    signal: """SIGKILL SIGSTOP SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGCHLD SIGALRM SIGPIPE
        SIGCONT pthread_kill pthread_sigmask sigwait setitimer alarm""",
}
POSIX = {
    (m, name): getattr(m, name, None) for m, t in NAMES.items() for name in t.split()
}
flock = fcntl.flock


def take_away():
    """From now on; the package is imported anew, and takes this for Windows."""
    for name in [*sys.modules]:
        if name.startswith(("resilient", "support.")) and name != __name__:
            del sys.modules[name]
    for (module, name), value in POSIX.items():
        if value is not None:
            delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None
    os.supports_dir_fd = set()
    shutil._use_fd_functions = False
    if sys.modules.get("portalocker") is None:
        sys.modules["portalocker"] = _portalocker()
    importlib.import_module("resilient.storage.store")
    importlib.import_module("resilient.storage.files")
    ours = [sys.modules[name] for name in sys.modules if name.startswith("resilient.")]
    told = [module for module in ours if "WINDOWS" in vars(module)]
    for module in told:
        module.WINDOWS = True
    assert len(told) >= 2


def _portalocker():
    """What the library is there, which is installed on Windows only."""
    stub = types.ModuleType("portalocker")
    stub.LockFlags = types.SimpleNamespace(
        EXCLUSIVE=fcntl.LOCK_EX, NON_BLOCKING=fcntl.LOCK_NB
    )
    stub.LockException = type("LockException", (Exception,), {})
    stub.AlreadyLocked = type("AlreadyLocked", (stub.LockException,), {})

    def lock(descriptor, how):
        try:
            flock(descriptor, how)
        except BlockingIOError as error:
            raise stub.AlreadyLocked from error

    stub.lock = lock
    return stub
