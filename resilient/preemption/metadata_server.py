"""Asks a cloud's metadata server one question, within a time limit.

The limit covers the whole answer: a server that sends a byte now and then is abandoned
like a silent one. (Resolving a host name may take longer if there is no such server.)
Proxies are bypassed and redirects are not followed: a metadata server is link-local.
"""

import socket
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple
from urllib.request import HTTPHandler, OpenerDirector, Request

from resilient.errors import message

_LONGEST = 2**20  # bytes of the longest answer
_HINT = "Check that nothing else uses its address."


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    text: str
    url: str


def checked(url: str) -> str:
    """The URL of a metadata server; otherwise ValueError."""
    if not url.startswith("http://"):
        what = "The url of a metadata server must use http."
        todo = "Leave out the url, or give one such as http://169.254.169.254."
        raise ValueError(message(what, received=f"url={url!r}", hint=todo))
    return url.rstrip("/")


def ask(method: str, url: str, headers: dict[str, str], timeout: float) -> Answer:
    """One answer, whatever its status.

    Raises:
        OSError: No answer in time.
        ValueError: It is not HTTP, not text, or too long.
    """
    opener = OpenerDirector()  # an empty one knows neither proxies nor redirects
    opener.add_handler(_Handler())
    request = Request(url, headers=headers, method=method)  # noqa: S310  # checked
    try:
        with opener.open(request, timeout=timeout) as response:
            body: bytes = response.read(_LONGEST + 1)
            answer = Answer(response.status, response.headers, body.decode(), url)
    except HTTPException as error:
        raise ValueError(
            message(
                "What answered in place of the metadata server does not speak HTTP.",
                received=f"{url}: {error!r}",
                hint=_HINT,
            )
        ) from error
    if len(body) > _LONGEST:
        raise odd("a cloud", answer, f"more than {_LONGEST:,} bytes")
    return answer


def odd(cloud: str, answer: Answer, received: object) -> ValueError:
    """The error for an answer that does not match the cloud's documentation."""
    return ValueError(
        message(
            f"The metadata server of {cloud} did not answer as documented.",
            received=f"{str(received)[:200]!r} from {answer.url}",
            hint=_HINT,
        )
    )


class _Socket(socket.socket):
    """A connected socket with one deadline for all its reads."""

    def __init__(self, connected: socket.socket, until: float) -> None:
        super().__init__(fileno=connected.detach())
        self._until = until

    def recv_into(self, *arguments: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)
        return super().recv_into(*arguments)


class _Connection(HTTPConnection):
    """A connection whose timeout covers everything that it does."""

    def connect(self) -> None:
        assert self.timeout is not None
        until = time.monotonic() + self.timeout
        super().connect()
        self.sock = _Socket(self.sock, until)


class _Handler(HTTPHandler):
    def http_open(self, req: Request) -> Any:
        return self.do_open(_Connection, req)
