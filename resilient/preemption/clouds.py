"""Ask a cloud provider whether it is about to reclaim this machine.

Each function creates a probe for ``resilient.Preemption(notices=...)``. A probe asks
the cloud's metadata server one question, and waits for the whole answer no longer than
its timeout. An answer that does not match the cloud's documentation is an error; it
never counts as a notice, nor as its absence.

Advice to move elsewhere (AWS's rebalance recommendation, Azure maintenance that a
machine survives) is not a notice.
"""

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from resilient.errors import message
from resilient.preemption.metadata_server import Answer, ask, checked, odd

# Returns the text of a notice, or None. OSError or ValueError: no valid answer.
Probe = Callable[[], str | None]

_AZURE = {"Metadata": "true"}
_AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_AWS_TOKEN = "/latest/api/token"  # noqa: S105  # a path
_AWS_NOTICE = "/latest/meta-data/spot/instance-action"
_AWS_TOKEN_SECONDS = 6 * 60 * 60  # the longest that AWS allows


def gce(*, url: str = "http://metadata.google.internal", timeout: float = 1.0) -> Probe:
    """A probe for Spot and preemptible instances of Google Compute Engine.

    Args:
        url: The metadata server.
        timeout: Seconds to wait for it.
    """
    path = checked(url) + "/computeMetadata/v1/instance/preempted"

    def probe() -> str | None:
        answer = ask("GET", path, {"Metadata-Flavor": "Google"}, timeout)
        _expect_ok("GCE", answer)
        if answer.headers.get("Metadata-Flavor") != "Google":
            raise odd("GCE", answer, "no header Metadata-Flavor: Google")
        match answer.text.strip():
            case "FALSE":
                return None
            case "TRUE":
                return "GCE: this instance is being preempted"
        raise odd("GCE", answer, answer.text)

    return probe


def aws(*, url: str = "http://169.254.169.254", timeout: float = 1.0) -> Probe:
    """A probe for AWS Spot instances, which get two minutes' notice.

    It uses IMDSv2. In a container, the instance's metadata hop limit must be 2.

    Args:
        url: The metadata server.
        timeout: Seconds to wait for each of its answers.
    """
    server = checked(url)
    token = ""

    def ask_for_notice() -> Answer:
        headers = {"X-aws-ec2-metadata-token": token}
        return ask("GET", server + _AWS_NOTICE, headers, timeout)

    def probe() -> str | None:
        nonlocal token
        token = token or _aws_token(server, timeout)
        answer = ask_for_notice()
        if answer.status == HTTPStatus.UNAUTHORIZED:  # it has expired
            token = _aws_token(server, timeout)
            answer = ask_for_notice()
        if answer.status == HTTPStatus.NOT_FOUND:  # as documented: no notice
            return None
        _expect_ok("AWS", answer)
        notice = _object("AWS", answer)
        action = _words("AWS", answer, notice.get("action"))
        when = _words("AWS", answer, notice.get("time"))
        return f"AWS: this spot instance gets the action {action!r} at {when}"

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
    server = checked(url)

    def probe() -> str | None:
        answer = ask("GET", server + _AZURE_EVENTS, _AZURE, timeout)
        _expect_ok("Azure", answer)
        events = _object("Azure", answer).get("Events")
        if not isinstance(events, list):
            raise odd("Azure", answer, answer.text)
        for event in events:
            notice = _azure_notice(answer, event)
            if notice and _azure_is_among(event["Resources"], server, timeout):
                return notice
        return None

    return probe


def _aws_token(server: str, timeout: float) -> str:
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_AWS_TOKEN_SECONDS)}
    answer = ask("PUT", server + _AWS_TOKEN, headers, timeout)
    _expect_ok("AWS", answer)
    return _words("AWS", answer, answer.text.strip())


def _azure_notice(answer: Answer, event: object) -> str | None:
    """The notice in an event, if it ends the machines that it names."""
    if not isinstance(event, dict):
        raise odd("Azure", answer, event)
    kind = _words("Azure", answer, event.get("EventType"))
    if kind not in ("Preempt", "Terminate"):
        return None
    if not isinstance(event.get("Resources"), list):
        raise odd("Azure", answer, event)
    # Once it has started, there is no time left.
    when = _words("Azure", answer, event.get("NotBefore") or "now")
    return f"Azure: {kind} of this machine, not before {when}"


def _azure_is_among(names: list[object], server: str, timeout: float) -> bool:
    try:
        answer = ask("GET", server + _AZURE_NAME, _AZURE, timeout)
        _expect_ok("Azure", answer)
        name = _words("Azure", answer, answer.text.strip())
    except (OSError, ValueError):
        return True
    return name.lower() in [str(one).lower() for one in names]


def _expect_ok(cloud: str, answer: Answer) -> None:
    if answer.status != HTTPStatus.OK:
        raise OSError(
            message(
                f"The metadata server of {cloud} did not answer as expected.",
                received=f"status {answer.status} from {answer.url}",
                hint=f"Use this probe only on machines of {cloud} whose metadata "
                "service is enabled.",
            )
        )


def _object(cloud: str, answer: Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise odd(cloud, answer, answer.text)
    return found


def _words(cloud: str, answer: Answer, value: object) -> str:
    """A short text, safe for a header and for one line of a log."""
    if isinstance(value, str) and 0 < len(value) <= 500 and value.isprintable():
        return value
    raise odd(cloud, answer, value)
