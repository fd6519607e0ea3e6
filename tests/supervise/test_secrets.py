"""No secret of a command gets into the checkpoint directory, which others may read."""

import shlex

import pytest

pytestmark = pytest.mark.once

HARMLESS = ["--epochs", "90", "--max-tokens=512", "--tokenizer", "bert", "lr=0.1"]
SECRETS = [
    "--api-key=CANARY-1",
    *("--token", "CANARY-2"),
    *("--db-password", "CANARY 3 'of' several, words"),
    *("--env", "AWS_SECRET_ACCESS_KEY=CANARY-4"),
    "--env=WANDB_API_KEY=CANARY-5",
    "--registry=https://user:CANARY-6@example.com/models",
    *("--header", "Authorization: Bearer CANARY-7"),
    '{"credentials": {"of": ["CANARY-8"]}, "epochs": 17}',
    *("sh", "-c", "python eval.py --auth CANARY-9 --split test"),
    "CANARY_TOKEN=ghp_0123456789abcdefCANARY",
]


@pytest.fixture
def run(supervise):
    """A training that prints what it was given, and fails with it in two ways."""
    run = supervise(
        """
        train(1)
        print(sys.argv, dict(os.environ), file=sys.stderr)
        print(sys.argv, dict(os.environ))
        text = f"https://user:CANARY-6@example.com said {sys.argv[2:]}"
        if attempt == 0:
            raise RuntimeError(text)
        if attempt == 1:
            events.emit("failed", step=1, error="E", message=text, signature="s")
            sys.exit(1)
        """,
        arguments=[*HARMLESS, *SECRETS],
        MY_API_KEY="CANARY-10",
        HARMLESS_TO_ALL="CANARY-11",
    )
    run.code, run.out, run.err = run.end()
    return run


def test_no_secret_is_in_any_file(run):
    assert run.code == 0, run.err
    files = [path for path in run.directory.rglob("*") if path.is_file()]
    assert run.directory / "events.jsonl" in files
    for path in files:
        assert b"CANARY-" not in path.read_bytes(), path
        assert b"ghp_" not in path.read_bytes(), path


def test_what_is_no_secret_is_said(run):
    lines = [x for x in run.err.splitlines() if x.startswith("resilient: ")]
    said = "\n".join(line.removeprefix("resilient: ") for line in lines)
    command = shlex.split(said.partition("\nError: ")[0].removeprefix("Running: "))
    assert command[4 : 4 + len(HARMLESS)] == HARMLESS
    rest = command[4 + len(HARMLESS) :]
    assert rest == [
        "--api-key=***",
        *("--token", "***"),
        *("--db-password", "***"),
        *("--env", "AWS_SECRET_ACCESS_KEY=***"),
        "--env=WANDB_API_KEY=***",
        "--registry=https://***@example.com/models",
        *("--header", "Authorization: ***"),
        '{"credentials": ***}, "epochs": 17}',
        *("sh", "-c", "python eval.py --auth *** --split test"),
        "CANARY_TOKEN=***",
    ]
    kinds = [event["kind"] for event in run.events("exited")]
    assert kinds == ["error", "error", "finished"]
    first, second, _ = (event["why"] for event in run.events("exited"))
    assert first.startswith("RuntimeError: https://***@example.com said ['--epochs'")
    assert second.startswith("E at step 1: https://***@example.com said ['--epochs'")


def test_what_the_supervisor_says_itself_has_no_secret(run):
    """Its output ends up in logs. What the training prints is passed on as it is."""
    said = [x for x in run.err.splitlines() if x.startswith("resilient: Running")]
    assert len(said) == 1
    assert "CANARY-11" in run.out
    assert all("CANARY" not in line for line in said)
