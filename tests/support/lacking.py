"""A file system in user space that lacks abilities: python lacking.py ROOT MOUNT LACKS.

It shows ROOT at MOUNT, until it is unmounted. LACKS are words with commas between.
"""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time

LACKS = {
    "flock": "locks of files, as Lustre without -o flock",
    "fsyncdir": "fsync of directories, as some network drives",
    "rename": "renames of directories, as Google Cloud Storage",
    "atomic": "renames of directories that are all or nothing, as S3",
    "link": "hard and symbolic links, as Google Drive",
    "replace": "renames over a file, as some mounts of object stores",
}


def why_not():
    """Why nothing can be mounted here; None if something can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "there is no /dev/fuse, or this user may not open it"
    if not (shutil.which("fusermount3") or shutil.which("fusermount")):
        return "fusermount is missing (Debian: fuse3)"
    try:
        import mfusepy
    except ImportError:
        return "mfusepy is missing"
    except OSError as error:
        return f"libfuse is missing: {error}"
    return None if mfusepy else ""


def refuse(monkeypatch, name, number, *, when):
    """Let a function of ``os`` fail for what ``when`` says."""
    call = getattr(os, name)

    def refused(first, *others):
        if when(first):
            raise OSError(number, os.strerror(number), str(first))
        return call(first, *others)

    monkeypatch.setattr(os, name, refused)


@contextlib.contextmanager
def mounted(place, *lacks):
    """Where such a file system is mounted inside."""
    root, mount = place / "root", place / "mount"
    root.mkdir()
    mount.mkdir()
    command = [sys.executable, __file__, str(root), str(mount), ",".join(lacks)]
    server = subprocess.Popen(command)
    try:
        until = time.monotonic() + 20
        while not os.path.ismount(mount):
            assert server.poll() is None, server.returncode
            assert time.monotonic() < until
            time.sleep(0.01)
        yield mount
    finally:
        tool = shutil.which("fusermount3") or shutil.which("fusermount")
        subprocess.run([tool, "-uz", str(mount)], check=False)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def serve(root, mount, lacks):
    import mfusepy

    class Lacking(mfusepy.Operations):
        use_ns = True

        def at(self, path):
            return root + path

        def getattr(self, path, fh=None):
            found = os.lstat(self.at(path))
            times = {f"st_{t}time": getattr(found, f"st_{t}time_ns") for t in "amc"}
            names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size")
            return {name: getattr(found, name) for name in names} | times

        def readdir(self, path, fh):
            return [".", "..", *os.listdir(self.at(path))]

        def statfs(self, path):
            found = os.statvfs(self.at(path))
            names = "bavail bfree blocks bsize favail ffree files flag frsize namemax"
            return {f"f_{n}": getattr(found, f"f_{n}") for n in names.split()}

        def chmod(self, path, mode):
            os.chmod(self.at(path), mode)
            return 0

        def chown(self, path, uid, gid):
            os.lchown(self.at(path), uid, gid)
            return 0

        def utimens(self, path, times=None):
            os.utime(self.at(path), ns=times, follow_symlinks=False)
            return 0

        def mkdir(self, path, mode):
            os.mkdir(self.at(path), mode)
            return 0

        def rmdir(self, path):
            os.rmdir(self.at(path))
            return 0

        def unlink(self, path):
            os.unlink(self.at(path))
            return 0

        def symlink(self, target, source):
            if "link" in lacks:
                raise OSError(errno.EPERM, "no links")
            os.symlink(source, self.at(target))
            return 0

        def link(self, target, source):
            if "link" in lacks:
                raise OSError(errno.EPERM, "no links")
            os.link(self.at(source), self.at(target))
            return 0

        def readlink(self, path):
            return os.readlink(self.at(path))

        def rename(self, old, new):
            old, new = self.at(old), self.at(new)
            if os.path.isdir(old) and "rename" in lacks:
                raise OSError(errno.ENOTSUP, "directories are not renamed")
            if "replace" in lacks and os.path.lexists(new):
                raise OSError(errno.ENOSYS, "no file is replaced")
            if os.path.isdir(old) and "atomic" in lacks:
                self.one_by_one(old, new)
            else:
                os.rename(old, new)
            return 0

        def one_by_one(self, old, new):
            os.mkdir(new)
            for name in sorted(os.listdir(old)):
                inner = os.path.join(old, name)
                other = os.path.join(new, name)
                if os.path.isdir(inner):
                    self.one_by_one(inner, other)
                else:
                    os.rename(inner, other)
            os.rmdir(old)

        def create(self, path, mode, fi=None):
            flags = os.O_CREAT | os.O_RDWR
            return os.open(self.at(path), flags, mode)

        def open(self, path, flags):
            writes = flags & (os.O_WRONLY | os.O_RDWR)
            return os.open(self.at(path), os.O_RDWR if writes else os.O_RDONLY)

        def read(self, path, size, offset, fh):
            return os.pread(fh, size, offset)

        def write(self, path, data, offset, fh):
            return os.pwrite(fh, data, offset)

        def truncate(self, path, length, fh=None):
            os.truncate(self.at(path), length)
            return 0

        def release(self, path, fh):
            os.close(fh)
            return 0

        def fsync(self, path, datasync, fh):
            os.fsync(fh)
            return 0

        def fsyncdir(self, path, datasync, fh):
            if "fsyncdir" in lacks:
                raise OSError(errno.EINVAL, "directories are not synced")
            return 0

        def flock(self, path, fh, op):
            import fcntl

            if "flock" in lacks:
                raise OSError(errno.ENOTSUP, "no locks")
            fcntl.flock(fh, op)
            return 0

    mfusepy.FUSE(
        Lacking(),
        mount,
        foreground=True,
        nothreads=True,
        # Linux then calls it "fuse.s3fs".
        **({"subtype": "s3fs"} if "atomic" in lacks else {}),
    )


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], set(sys.argv[3].split(",")))
