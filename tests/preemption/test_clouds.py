"""Notices of clouds, from a server on this machine that speaks as their documents say.

Only the server's address differs from that of a real one; no cloud is asked.
"""

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from resilient.preemption.clouds import Probe, aws, azure, gce

pytestmark = pytest.mark.once

GCE = "/computeMetadata/v1/instance/preempted"
TOKEN = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
SPOT = '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
PREEMPT = {
    "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    "EventStatus": "Scheduled",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["FrontEnd_IN_0", "BackEnd_IN_0"],
    "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
    "Description": "",
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}
TIMEOUT = 30.0  # never waited for, but by the test of a server that hangs


@dataclass
class Cloud:
    """A metadata server: (status, text) by method and path, and what was asked."""

    answers: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    hung: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def allows(self, method: str, path: str, headers) -> int:
        """The status that a request deserves, apart from what is answered."""
        if path.startswith("/computeMetadata"):
            return 200 if headers["Metadata-Flavor"] == "Google" else 403
        if path.startswith("/metadata"):
            return 200 if headers["Metadata"] == "true" else 400
        if method == "PUT":
            seconds = headers["X-aws-ec2-metadata-token-ttl-seconds"]
            return 200 if 1 <= int(seconds) <= 21600 else 400
        return 200 if headers["X-aws-ec2-metadata-token"] in self.tokens[-1:] else 401


def handler(cloud: Cloud) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            cloud.asked.append((self.command, self.path))
            status = cloud.allows(self.command, self.path, self.headers)
            text = ""
            if status == 200:
                status, text = cloud.answers.get((self.command, self.path), (404, ""))
            if status == 0:
                cloud.hung.wait(60)
                return
            if (self.command, self.path, status) == ("PUT", TOKEN, 200):
                cloud.tokens.append(text)
            self.send_response(status)
            for name, value in cloud.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_PUT = answer

        def log_message(self, *_arguments: object) -> None:
            pass

    return Handler


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    cloud = Cloud(headers={"Metadata-Flavor": "Google"})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(cloud)) as server:
        cloud.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield cloud
        cloud.hung.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def every_probe(cloud: Cloud) -> list[Probe]:
    return [make(url=cloud.url, timeout=TIMEOUT) for make in (gce, aws, azure)]


def on_gce(cloud: Cloud, text: str, status: int = 200) -> Probe:
    cloud.answers["GET", GCE] = status, text
    return gce(url=cloud.url, timeout=TIMEOUT)


def on_aws(cloud: Cloud, text: str, status: int = 200) -> Probe:
    cloud.answers["PUT", TOKEN] = 200, "AQAAAHNxm=="
    cloud.answers["GET", ACTION] = status, text
    return aws(url=cloud.url, timeout=TIMEOUT)


def on_azure(cloud: Cloud, *events: object, name: str | None = None) -> Probe:
    document = {"DocumentIncarnation": 1, "Events": list(events)}
    cloud.answers["GET", EVENTS] = 200, json.dumps(document)
    if name is not None:
        cloud.answers["GET", NAME] = 200, name
    return azure(url=cloud.url + "/", timeout=TIMEOUT)


def test_gce_says_whether_the_instance_is_being_preempted(cloud):
    assert on_gce(cloud, "FALSE")() is None
    assert on_gce(cloud, "TRUE\n")() == "GCE: this instance is being preempted"
    assert cloud.asked == [("GET", GCE)] * 2


@pytest.mark.parametrize("text", ["", "true", "TRUE FALSE", "<html>TRUE</html>"])
def test_gce_must_use_its_own_words(cloud, text):
    with pytest.raises(ValueError, match="of GCE did not answer as documented"):
        on_gce(cloud, text)()


def test_gce_must_sign_its_answer(cloud):
    """So says its documentation; a captive portal does not."""
    cloud.headers.clear()
    with pytest.raises(ValueError, match="of GCE did not answer as documented"):
        on_gce(cloud, "TRUE")()


def test_aws_has_no_notice_where_there_is_no_action(cloud):
    assert on_aws(cloud, "", status=404)() is None
    assert cloud.asked == [("PUT", TOKEN), ("GET", ACTION)]


def test_aws_tells_the_action_and_its_time(cloud):
    assert on_aws(cloud, SPOT)() == (
        "AWS: this spot instance gets the action 'terminate' at 2017-09-18T08:22:00Z"
    )


def test_a_token_that_aws_does_not_take_is_an_error(cloud):
    probe = on_aws(cloud, "", status=401)
    with pytest.raises(OSError, match="status 401"):
        probe()
    assert cloud.asked == [("PUT", TOKEN), ("GET", ACTION)]


@pytest.mark.parametrize("status", [400, 403, 404])
def test_aws_without_a_token_is_an_error_and_no_absence(cloud, status):
    probe = on_aws(cloud, "", status=404)
    cloud.answers["PUT", TOKEN] = status, ""
    with pytest.raises(OSError, match=f"status {status} from .*{TOKEN}"):
        probe()
    assert cloud.asked == [("PUT", TOKEN)]


def test_aws_gives_a_token_that_fits_a_header(cloud):
    probe = on_aws(cloud, SPOT)
    cloud.answers["PUT", TOKEN] = 200, "two\nlines"
    with pytest.raises(ValueError, match="of AWS did not answer as documented"):
        probe()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "[]",
        "{}",
        '{"action": "stop"}',
        '{"action": "stop", "time": 1}',
        "[" * 100_000,
    ],
)
def test_aws_must_give_both_as_text(cloud, text):
    with pytest.raises(ValueError, match="of AWS did not answer as documented"):
        on_aws(cloud, text)()


def test_azure_without_events_has_no_notice(cloud):
    assert on_azure(cloud)() is None
    assert cloud.asked == [("GET", EVENTS)]


@pytest.mark.parametrize("kind", ["Preempt", "Terminate"])
@pytest.mark.parametrize("name", ["FrontEnd_IN_0", "frontend_in_0\n"])
def test_azure_tells_what_will_happen_to_this_machine(cloud, kind, name):
    probe = on_azure(cloud, PREEMPT | {"EventType": kind}, name=name)
    assert probe() == (
        f"Azure: {kind} of this machine, not before Mon, 11 Apr 2022 22:26:58 GMT"
    )


def test_azure_has_no_time_for_what_has_started(cloud):
    started = PREEMPT | {"EventStatus": "Started", "NotBefore": ""}
    assert on_azure(cloud, started)() == (
        "Azure: Preempt of this machine, not before now"
    )


def test_azure_names_other_machines_of_the_scale_set_too(cloud):
    assert on_azure(cloud, PREEMPT, name="FrontEnd_IN_7")() is None
    assert cloud.asked == [("GET", EVENTS), ("GET", NAME)]


def test_azure_counts_any_machine_where_this_ones_name_is_not_told(cloud):
    assert on_azure(cloud, PREEMPT)().startswith("Azure: Preempt")
    assert cloud.asked == [("GET", EVENTS), ("GET", NAME)]


@pytest.mark.parametrize("kind", ["Freeze", "Reboot", "Redeploy"])
def test_azures_maintenance_is_no_preemption(cloud, kind):
    """One event of many may be one all the same."""
    maintenance = PREEMPT | {"EventType": kind}
    assert on_azure(cloud, maintenance, name="FrontEnd_IN_0")() is None
    probe = on_azure(cloud, maintenance, PREEMPT, name="FrontEnd_IN_0")
    assert probe().startswith("Azure: Preempt")


@pytest.mark.parametrize(
    "events",
    [
        ["Preempt"],
        [{}],
        [PREEMPT | {"EventType": 3}],
        [PREEMPT | {"Resources": "FrontEnd_IN_0"}],
        [PREEMPT | {"NotBefore": 5}],
    ],
)
def test_azures_events_must_be_as_documented(cloud, events):
    with pytest.raises(ValueError, match="of Azure did not answer as documented"):
        on_azure(cloud, *events)()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"Events": {}}'])
def test_azures_document_must_have_events(cloud, text):
    probe = on_azure(cloud)
    cloud.answers["GET", EVENTS] = 200, text
    with pytest.raises(ValueError, match="of Azure did not answer as documented"):
        probe()


@pytest.mark.parametrize("status", [301, 404, 410, 500, 503])
def test_another_status_is_an_error(cloud, every_probe, status):
    """404 too, where it does not mean that there is no notice. Nothing is followed."""
    cloud.headers["Location"] = "/elsewhere"
    cloud.answers["GET", GCE] = cloud.answers["GET", EVENTS] = status, ""
    cloud.answers["PUT", TOKEN] = status, ""
    for probe in every_probe:
        with pytest.raises(OSError, match=f"status {status} from"):
            probe()
    assert len(cloud.asked) == 3


def test_a_server_that_hangs_is_waited_for_no_longer_than_the_timeout(cloud):
    cloud.answers["GET", GCE] = cloud.answers["GET", EVENTS] = 0, ""
    cloud.answers["PUT", TOKEN] = 0, ""
    for make in (gce, aws, azure):
        with pytest.raises(OSError, match="timed out"):
            make(url=cloud.url, timeout=0.05)()


def test_without_a_server_the_question_fails(cloud):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    for make in (gce, aws, azure):
        with pytest.raises(OSError, match="refused"):
            make(url=url, timeout=TIMEOUT)()


def test_what_does_not_speak_http_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"220 mail.example.com ESMTP\r\n\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ValueError, match="did not answer as documented"):
            gce(url=url, timeout=TIMEOUT)()
        thread.join()


@pytest.mark.parametrize("text", ["FALSE" * 300_000, "TRUE\N{SNOWMAN}"])
def test_a_long_or_strange_answer_is_an_error(cloud, text):
    with pytest.raises(ValueError, match="not answer as documented"):
        on_gce(cloud, text)()


def test_proxies_are_bypassed(cloud, monkeypatch):
    """They would ask their own machine's server."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert on_gce(cloud, "FALSE")() is None
