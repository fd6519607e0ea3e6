"""What is left out of what is recorded, and what is not."""

import pytest

from resilient.serialization.redaction import redacted, redacted_command
from resilient.telemetry.events import Events, read_events

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    "name",
    [
        *(
            "--api-key",
            "--apikey",
            "--apiKey",
            "-api_key",
            "--key",
            "--ssh.private-key",
        ),
        *("--token", "--hf-token", "--accessToken", "--hftoken", "--auth", "--oauth"),
        *("--password", "--passwd", "--db-pass", "--passphrase", "--mysql_pwd"),
        *("--secret", "--client-secrets", "--credential", "--credentials", "--creds"),
        *("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "PGPASSWORD", "wandb.api_key"),
    ],
)
def test_names_of_secrets(name):
    assert redacted_command([f"{name}=CANARY, and 'more'"]) == [f"{name}=***"]
    assert redacted_command([f"--set={name}=CANARY"]) == [f"--set={name}=***"]
    assert redacted(f"it said {name}=CANARY there") == f"it said {name}=*** there"
    if name.startswith("-"):
        assert redacted_command([name, "CANARY it is"]) == [name, "***"]
        assert redacted(f"run {name} CANARY now") == f"run {name} *** now"
        assert redacted(f"['{name}', 'CAN ARY']") == f"['{name}', ***]"


@pytest.mark.parametrize(
    "command",
    [
        ["train.py", "--epochs", "90", "--lr=0.1", "--keep", "3"],
        ["--max-tokens=512", "--tokenizer", "bert", "--author=Me", "--monkey=banana"],
        ["--keyboard", "us", "--compass", "north", "--bypass=1", "--passes", "3"],
        ["https://example.com:8080/a/b@main?epochs=3", "git@example.com:a/b"],
        ["--use-auth", "--epochs", "3"],
        ["python", "/a/key.py", "90"],
        [
            "print('a: b', x == 3)",
            "runs/2026-01-01",
            "0123456789abcdef0123456789abcdef",
        ],
    ],
)
def test_what_is_harmless_stays(command):
    assert redacted_command(command) == command
    assert redacted(" ".join(command)) == " ".join(command)


@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "github_pat_11ABCDEFG0123456789_abcdef",
        "glpat-0123456789abcdefghij",
        "sk-proj-0123456789abcdefghijklmn",
        "sk_live_0123456789abcdef",
        "hf_ABCDEFGHIJKLMNOPqrstuvwxyz",
        "xoxb-0123456789-abcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    ],
)
def test_secrets_are_known_by_their_shape(text):
    assert redacted_command([text]) == ["***"]
    assert redacted(f"it is ({text}).") == "it is (***)."


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("https://user:CANARY@example.com/x", "https://***@example.com/x"),
        ("redis://:CANARY@db:6379", "redis://***@db:6379"),
        ("https://x/y?lr=3&token=CANARY", "https://x/y?lr=3&token=***"),
        ('{"token": "CAN\\"ARY", "lr": 3}', '{"token": ***, "lr": 3}'),
        ("{'api_key': 'CANARY'}", "{'api_key': ***}"),
        ("os.environ['RESILIENT_KEY'] = 'CANARY'", "os.environ['RESILIENT_KEY'] = ***"),
        ("password: CANARY", "password: ***"),
        ("X-Api-Key: CANARY", "X-Api-Key: ***"),
        ("Authorization: Bearer CANARY-1", "Authorization: Bearer ***"),
        ("with token 0123456789abcdefcafe it", "with token *** it"),
        ("wandb login 0123456789abcdefcafe", "wandb login ***"),
        ("secret CANARYcanaryCANARY0123456789", "secret ***"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nCANARY\n-----END RSA PRIVATE KEY-----",
            "***",
        ),
        ("a=b=secret=CANARY", "a=b=secret=***"),
    ],
)
def test_secrets_in_texts(text, left):
    assert redacted(text) == left
    assert redacted(left) == left


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'image'",
        "AuthenticationError: no",
        "Missing key: encoder/layer_1/kernel",
        "unexpected token: }",
        "/home/me/token.py:12 main",
        "the secret of training",
        "state[key] = x",
        "password=",
    ],
)
def test_what_errors_say_stays(text):
    assert redacted(text) == text


def test_a_value_may_be_an_argument_of_its_own():
    command = ["aws", "set", "aws_secret_access_key", "CANARY", "--token", "-x", "1"]
    left = ["aws", "set", "aws_secret_access_key", "***", "--token", "-x", "1"]
    assert redacted_command(command) == left


def test_an_argument_may_have_two_secrets():
    command = ["https://user:CANARY@example.com/x?lr=3&token=CANARY"]
    assert redacted_command(command) == ["https://***@example.com/x?lr=3&token=***"]


@pytest.mark.parametrize(
    "part", ["a=", "a:", "token:", "key=' ", "://", "a", "-", "A1", "eyJ", "key 'aB "]
)
def test_a_long_text_takes_no_time(part):
    """It is read once, and not again from each of its places."""
    text = part * (200_000 // len(part))
    assert len(redacted(text)) <= len(text)


def test_events_have_no_secrets(tmp_path):
    told = []
    events = Events(tmp_path, told.append)
    error = OSError("https://user:CANARY@example.com")
    events.emit("x", error=error, texts=["token=CANARY", {"y": "password: CANARY"}])
    (event,) = read_events(tmp_path)
    assert event == told[0]
    assert event["error"] == "https://***@example.com"
    assert event["texts"] == ["token=***", {"y": "password: ***"}]
