"""What somebody wrote into a checkpoint directory commands no terminal."""

import dataclasses
import json
import os
import re

import pytest
from another_backend import CHECKPOINTS, FIT, LOOP
from support.checkpoint_samples import filled, save, save_run
from support.reported import write_events

from resilient.cli.main import main
from resilient.storage import quarantine
from resilient.storage.checkpoint import Checkpoint
from resilient.storage.manifest import FileRecord

pytestmark = pytest.mark.once

# Colours, a title, an 8-bit escape, an overwritten and a forged line, reversed text,
# half a surrogate pair, and rich's own markup; then text that harms nobody.
CANARIES = ["\x1b[31m", "\x1b]0;x\x07", "\x9b31m", "\r", "\nforged", "\u202e", "\u2066"]
CANARIES += ["\x7f", "\u2028", "\x00", "\x08", "\t", "\x85"]
HARMLESS = "é日本[red]x[/red][link=u]:smile:"
ODD = "".join(CANARIES) + HARMLESS
RUNS = {"fit": CHECKPOINTS / "torch" / FIT, "loop": CHECKPOINTS / "torch" / LOOP}
CONTROLS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def told(capsys, *arguments):
    """Exit code and all output of a command, which no terminal obeys."""
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    text = output.out + output.err
    assert not CONTROLS.search(text)
    assert not any(line.lstrip().startswith("forged") for line in text.splitlines())
    assert "Traceback" not in text
    return code, text


def rewrite(path, **changes):
    """Let the manifest say something else, with its checksums as they have to be."""
    manifest = dataclasses.replace(Checkpoint.read(path), **changes)
    (path / "manifest.json").write_bytes(manifest.to_bytes())


@pytest.mark.parametrize("as_json", [[], ["--json"]])
@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": {ODD: 1.0}},
        {"created": ODD},
        {"environment": {ODD: "1"}},
        {"environment": {"keras": ODD}},
        {"files": {ODD.replace("\x00", ""): FileRecord(3, "0" * 32)}},
        {"files": {"a": FileRecord(3, ODD)}},
    ],
    ids=lambda changes: str(next(iter(changes))),
)
def test_a_manifest_is_shown_and_obeyed_by_no_terminal(
    tmp_path, capsys, changes, as_json
):
    store = filled(tmp_path, 10)
    rewrite(tmp_path / "step-00000010", **changes)
    for command in ("ls", "show", "verify"):
        told(capsys, command, tmp_path, *as_json)
    save(store, 20, metrics={ODD: 0.5})
    for command in ("ls", "show"):
        code, text = told(capsys, command, tmp_path, *as_json)
        assert code in (0, 1)
        assert HARMLESS in text
        if as_json:  # what is escaped there is the same
            data = json.loads(text)
            assert (
                ODD
                in (data if command == "show" else data["checkpoints"][-1])["metrics"]
            )


HOSTILE_RUNS = {
    "fit": {
        "variables": [
            {"name": "trainable.0", "path": f"a/{ODD}", "shape": [2], "dtype": ODD},
            {"name": ODD, "path": ODD, "shape": [2**53] * 64, "dtype": "float999"},
        ],
        "callbacks": [{"class": ODD}],
        "stateful": {ODD: 1},
        "fingerprint": {
            "identity": {
                "model": ODD,
                "optimizer": [ODD],
                f"data {ODD}": ODD,
                "data x": {"shape": [ODD, [ODD]], "dtype": ODD},
                "data n": [[ODD]] * 1000,
            },
            "settings": {},
            "determinism": {},
        },
        "learning_rates": {"!": "dict", "v": [[ODD, 1.0]]},
    },
    "loop": {
        "variables": [{"name": f"a.{ODD}", "path": ODD, "shape": [], "dtype": "bool"}],
        "fingerprint": {
            "identity": {"objects": {ODD: ODD}},
            "settings": {},
            "determinism": {},
        },
        "data": {f"data {ODD}": ODD, "data samples": 10**12, "data batch_size": 1},
    },
    "import": {"source": ODD, "unknown": [ODD]},
}


@pytest.mark.parametrize("as_json", [[], ["--json"]])
@pytest.mark.parametrize("kind", HOSTILE_RUNS)
def test_a_run_is_shown_and_obeyed_by_no_terminal(tmp_path, capsys, kind, as_json):
    sample = {}
    if kind != "import":
        path = RUNS[kind] / "run.json"
        sample = json.loads(path.read_text())
    save_run(filled(tmp_path), sample | {"kind": kind} | HOSTILE_RUNS[kind])
    code, text = told(capsys, "show", tmp_path, *as_json)
    assert code == 0
    assert HARMLESS in text
    if as_json:
        assert json.loads(text)["run"]["kind"] == kind
    else:
        assert len(text) < 10_000


@pytest.mark.parametrize(
    "change",
    [
        {"variables": [{"name": ODD}]},
        {"fingerprint": {"identity": [ODD], "settings": {}, "determinism": {}}},
        {"learning_rates": {"!": "int", "v": "0x" + "f" * 1000}},
        {"learning_rates": {"!": "array", "v": {"array": ODD}}},
        {"learning_rates": {"!": ODD, "v": ODD}},
    ],
    ids=str,
)
def test_a_run_that_is_none_is_an_error_in_lines(tmp_path, capsys, change):
    path = RUNS["fit"] / "run.json"
    save_run(filled(tmp_path), json.loads(path.read_text()) | change)
    code, text = told(capsys, "show", tmp_path)
    assert code == 1
    assert "does not match the checkpoint format" in text or "malformed" in text
    code, text = told(capsys, "show", tmp_path, "--json")
    assert code == 1
    assert json.loads(text)["message"]


def test_the_names_of_runs_are_obeyed_by_no_terminal(tmp_path, capsys):
    name = ODD.translate(dict.fromkeys(map(ord, "\x00/")))
    for path in (tmp_path / name, tmp_path / name / "inner"):
        write_events(path, 5, [("a", 0, "started", {})])
    for command in ("report", "watch"):
        for as_json in ([], ["--json"]):
            code, text = told(capsys, command, tmp_path, *as_json)
            assert code == 0
            assert HARMLESS.replace("/", "") in text


def test_a_reason_in_quarantine_is_shown_and_obeyed_by_no_terminal(tmp_path, capsys):
    filled(tmp_path, 10, 20)
    moved = quarantine.move(tmp_path / "step-00000020", "damaged", ODD)
    code, text = told(capsys, "ls", tmp_path)
    assert code == 0
    assert HARMLESS in text
    os.rename(
        moved, moved.with_name("step-" + ODD.replace("\x00", "")[:60].replace("/", ""))
    )
    told(capsys, "ls", tmp_path)
    told(capsys, "ls", tmp_path, "--json")


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_events_are_shown_and_obeyed_by_no_terminal(tmp_path, capsys, as_json):
    started = {"event": "started", "time": 5, "attempt": ODD, "host": ODD, "pid": 7}
    failed = started | {"event": "failed", "message": ODD, "where": [ODD], "step": 3}
    text = "".join(json.dumps(event) + "\n" for event in (started, failed))
    (tmp_path / "events.jsonl").write_text(text)
    code, text = told(capsys, "report", tmp_path, *as_json)
    assert code == 0
    assert HARMLESS in text


def test_the_names_of_directories_are_obeyed_by_no_terminal(tmp_path, capsys):
    # A message of ours has lines and tabs, so these may stand there.
    odd = os.fsdecode(b"\xff") + ODD
    name = odd.translate(dict.fromkeys(map(ord, "\x00/\n\t")))
    for command in ("ls", "show", "verify", "report"):
        assert told(capsys, command, tmp_path / name)[0] == 3
    filled(tmp_path / name, 10)
    for command in ("ls", "show", "verify"):
        for as_json in ([], ["--json"]):
            assert told(capsys, command, tmp_path / name, *as_json)[0] == 0


@pytest.mark.parametrize("command", ["ls", "show", "verify", "report"])
def test_odd_things_with_the_names_of_ours_are_told_of_in_lines(
    tmp_path, capsys, command
):
    filled(tmp_path, 5)
    os.mkfifo(tmp_path / "step-00000010")
    (tmp_path / "step-00000020").touch()
    (tmp_path / "step-00000030").symlink_to("nowhere")
    (tmp_path / "step-00000040").symlink_to("step-00000005")
    (tmp_path / "step-00000050").mkdir()
    (tmp_path / "quarantine").mkdir()
    os.mkfifo(tmp_path / "quarantine" / "step-00000060-1")
    os.mkfifo(tmp_path / "events.jsonl")
    os.mkfifo(tmp_path / "heartbeat")
    for number in range(10_000):
        (tmp_path / f"step-{number}\x1b[31m").touch()
    code, text = told(capsys, command, tmp_path)
    assert code == {"ls": 1, "show": 1, "verify": 1, "report": 5}[command]
    assert len(text.splitlines()) < 20


def test_what_this_user_may_not_read_is_an_error_in_a_line(
    tmp_path, capsys, monkeypatch
):
    filled(tmp_path, 5, 10)

    def refuse(path):
        raise PermissionError(13, "Permission denied", f"{path}\x1b[31m")

    monkeypatch.setattr(Checkpoint, "read", refuse)
    for command in ("ls", "show", "verify"):
        code, text = told(capsys, command, tmp_path)
        assert code == 5
        assert "Permission denied" in text
