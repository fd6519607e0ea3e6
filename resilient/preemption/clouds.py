"""Ask a cloud provider whether it is about to reclaim this machine.

Each function creates a probe for ``resilient.Preemption(notices=...)``. A probe asks
the cloud's metadata server, past any proxy and without following redirects. An answer
that does not match the cloud's documentation is an error; it never counts as a notice,
nor as its absence.

Advice to move elsewhere (AWS's rebalance recommendation, Azure maintenance that a
machine survives) is not a notice.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.parse import urlsplit

from resilient.errors import message
from resilient.serialization.schema import from_json, parse

T = TypeVar("T")

# Returns the text of a notice, or None. OSError or ValueError: no valid answer.
Probe = Callable[[], str | None]

_LONGEST = 2**20  # bytes of the longest answer

_GCE = "/computeMetadata/v1/instance/preempted"
_AWS_TOKEN = "/latest/api/token"  # noqa: S105  # a path
_AWS_NOTICE = "/latest/meta-data/spot/instance-action"
_AWS_SECONDS = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
_AZURE = {"Metadata": "true"}
_AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


@dataclass(frozen=True)
class _AwsNotice:
    """What AWS is going to do with a spot instance."""

    action: str
    time: str


@dataclass(frozen=True)
class _AzureEvent:
    """A scheduled event of Azure; ``NotBefore`` is empty once it has started."""

    EventType: str
    Resources: list[Any]
    NotBefore: str | None = None


@dataclass(frozen=True)
class _AzureEvents:
    """All scheduled events of Azure."""

    Events: list[_AzureEvent]


class _Server:
    """The metadata server of a cloud."""

    def __init__(self, cloud: str, url: str, timeout: float) -> None:
        self._cloud, self._url, self._timeout = cloud, url.rstrip("/"), timeout

    def ask(
        self, path: str, headers: dict[str, str], method: str = "GET"
    ) -> tuple[HTTPResponse, str]:
        """The answer to one question, and its text.

        Args:
            path: What is asked for.
            headers: Those of the request.
            method: That of the request.

        Raises:
            OSError: No answer in time, or one with a status other than 200;
                FileNotFoundError with 404.
            ValueError: It is not HTTP, not text, or too long; or the address is none.
        """
        host = urlsplit(self._url).netloc
        with contextlib.closing(HTTPConnection(host, timeout=self._timeout)) as server:
            try:
                server.request(method, path, headers=headers)
                response = server.getresponse()
                body = response.read(_LONGEST)
            except (HTTPException, ValueError) as error:
                raise self.odd(repr(error)) from error
            if not response.isclosed():
                raise self.odd(f"more than {_LONGEST:,} bytes")
        if response.status == HTTPStatus.OK:
            return response, body.decode().strip()
        missing = response.status == HTTPStatus.NOT_FOUND
        cls = FileNotFoundError if missing else OSError
        raise self.odd(f"status {response.status} from {path}", cls)

    def parsed(self, text: str, schema: type[T]) -> T:
        """The JSON in an answer."""
        try:
            return from_json(schema, parse(text))
        except ValueError:
            raise self.odd(text) from None

    def odd(self, received: str, cls: type[Exception] = ValueError) -> Exception:
        """The error for an answer that does not match the cloud's documentation."""
        return cls(
            message(
                f"The metadata server of {self._cloud} did not answer as documented.",
                received=f"{received[:200]!r} at {self._url}",
                hint=f"Use this probe only on machines of {self._cloud} whose metadata "
                "service is enabled, and check that nothing else uses its address.",
            )
        )


def gce(*, url: str = "http://metadata.google.internal", timeout: float = 1.0) -> Probe:
    """A probe for Spot and preemptible instances of Google Compute Engine.

    Args:
        url: The metadata server.
        timeout: Seconds to wait for it.
    """
    server, flavor = _Server("GCE", url, timeout), "Metadata-Flavor"
    means = {"FALSE": None, "TRUE": "GCE: this instance is being preempted"}

    def probe() -> str | None:
        response, text = server.ask(_GCE, {flavor: "Google"})
        if response.getheader(flavor) != "Google" or text not in means:
            raise server.odd(text)
        return means[text]

    return probe


def aws(*, url: str = "http://169.254.169.254", timeout: float = 1.0) -> Probe:
    """A probe for AWS Spot instances, which get two minutes' notice.

    It uses IMDSv2. In a container, the instance's metadata hop limit must be 2.

    Args:
        url: The metadata server.
        timeout: Seconds to wait for each of its answers.
    """
    server = _Server("AWS", url, timeout)

    def probe() -> str | None:
        _, token = server.ask(_AWS_TOKEN, _AWS_SECONDS, "PUT")
        try:
            _, text = server.ask(_AWS_NOTICE, {"X-aws-ec2-metadata-token": token})
        except FileNotFoundError:  # as documented: no notice
            return None
        found = server.parsed(text, _AwsNotice)
        return (
            f"AWS: this spot instance gets the action {found.action!r} at {found.time}"
        )

    return probe


def azure(*, url: str = "http://169.254.169.254", timeout: float = 1.0) -> Probe:
    """A probe for Azure Spot machines, and for machines about to be deleted.

    A notice is a scheduled event "Preempt" (30 seconds ahead) or "Terminate" that names
    this machine. Events of a scale set or availability set reach all of its machines;
    if the metadata server does not tell this machine's name, any event counts: stopping
    once too often loses less than being killed. Azure starts the service at the first
    question, and may take two minutes to answer: until then, probes fail.

    Args:
        url: The metadata server.
        timeout: Seconds to wait for each of its answers.
    """
    server = _Server("Azure", url, timeout)

    def names_this_machine(event: _AzureEvent) -> bool:
        try:
            _, name = server.ask(_AZURE_NAME, _AZURE)
        except (OSError, ValueError):
            return True
        return name.lower() in [str(one).lower() for one in event.Resources]

    def probe() -> str | None:
        _, text = server.ask(_AZURE_EVENTS, _AZURE)
        for event in server.parsed(text, _AzureEvents).Events:
            kind, when = event.EventType, event.NotBefore or "now"
            if kind in ("Preempt", "Terminate") and names_this_machine(event):
                return f"Azure: {kind} of this machine, not before {when}"
        return None

    return probe
