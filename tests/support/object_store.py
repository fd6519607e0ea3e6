"""A real S3 server on loopback, behind a proxy that lets requests fail as asked."""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "bucket"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "canary-key-id-1",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-2",
    "AWS_SESSION_TOKEN": "canary-session-token-3",
    "AWS_DEFAULT_REGION": "us-east-1",
}

# What a fault says: nothing, an HTTP status, or one of these.
RESET, HANG, KILL, KILL_AFTER = "reset", "hang", "kill", "kill after"
Fault = Callable[[int, str], int | str | None]


class Store:
    """The server and the proxy.

    Attributes:
        environment: Of processes that use it.
        requests: Those that were answered by the server: method and path.
        fault: Given the number of a request (from 1) and the same text, what happens.
        victim: Has the process id of what KILL kills.
        delay: Seconds before each request.
    """

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        self.fault: Fault = lambda _number, _request: None
        self.victim = folder / "victim"
        self.delay = 0.0
        self._count, self._lock = 0, threading.Lock()
        self._server = ThreadedMotoServer(port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self._behind = f"{host}:{port}"
        self._empty()
        self._proxy = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._proxy.daemon_threads = True
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{self._proxy.server_address[1]}"
        self.environment = CREDENTIALS | {"AWS_ENDPOINT_URL": endpoint}
        self.client = boto3.client(
            "s3",
            endpoint_url=f"http://{self._behind}",
            aws_access_key_id="a",
            aws_secret_access_key="b",
            region_name="us-east-1",
        )
        self.client.create_bucket(Bucket=BUCKET)

    @property
    def told(self) -> str:
        """The environment as an argument: a forked process has that of its server."""
        return json.dumps(self.environment)

    def objects(self) -> list[str]:
        """Of all objects."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def committed(self) -> list[int]:
        """Steps of the manifests that were put, in order."""
        puts = [each for each in self.requests if each.startswith("PUT ")]
        names = [each.split("/") for each in puts if each.endswith("/manifest.json")]
        return [int(parts[-2].split("-")[1]) for parts in names]

    def restart(self) -> None:
        """Count requests from 1 again, and let all succeed."""
        self._count, self.fault, self.requests = 0, lambda *_: None, []

    def close(self) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._empty()
        self._server.stop()

    def _empty(self) -> None:
        """All servers of a process have the same objects."""
        behind = http.client.HTTPConnection(self._behind, timeout=60)
        behind.request("POST", "/moto-api/reset")
        assert behind.getresponse().status == 200
        behind.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = f"{self.command} {unquote(urlsplit(self.path).path)}"
                with store._lock:
                    store._count += 1
                    fault = store.fault(store._count, request)
                time.sleep(store.delay)
                if fault == KILL:
                    store._kill()
                if fault == HANG:
                    time.sleep(3600)
                if fault in (KILL, RESET):
                    self._reset()
                    return
                if isinstance(fault, int):
                    self._answer(fault, [], _error(fault))
                    return
                self._forward(body, request)
                if fault == KILL_AFTER:
                    store._kill()

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

            def _forward(self, body: bytes, request: str) -> None:
                behind = http.client.HTTPConnection(store._behind, timeout=60)
                with contextlib.closing(behind):
                    behind.request(self.command, self.path, body, dict(self.headers))
                    answer = behind.getresponse()
                    content = answer.read()
                if answer.status < 300:
                    store.requests.append(request)
                self._answer(answer.status, answer.getheaders(), content)

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


def _error(status: int) -> bytes:
    codes = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}
    code = codes.get(status, "Error")
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Store]:
    """One, with its environment set in this process."""
    store = Store(folder)
    before = {name: os.environ.get(name) for name in store.environment}
    os.environ |= store.environment
    try:
        yield store
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        store.close()
