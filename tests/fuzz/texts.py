"""Readers of small files, which know of no Keras: bytes in, values out."""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from another_backend import CHECKPOINTS, FIT, LOOP
from support.checkpoint_samples import save_run
from support.manifests import resealed, sealed

from resilient.cli.main import main
from resilient.errors import ResilientError
from resilient.saving import run_json
from resilient.serialization.schema import (
    SchemaError,
    parse,
)
from resilient.storage import quarantine
from resilient.storage.lock import DirectoryLock
from resilient.storage.manifest import Manifest, ManifestError
from resilient.storage.store import Store
from resilient.telemetry import goodput, heartbeat
from resilient.telemetry.attempts import read_attempts
from resilient.telemetry.events import read_events
from resilient.training import rollback

from . import mutations, trees
from .seeds import samples
from .target import Files, Target

FILE = "content"


def targets() -> list[Target]:
    fit, loop = CHECKPOINTS / "torch" / FIT, CHECKPOINTS / "torch" / LOOP
    manifest = (fit / "manifest.json").read_bytes()
    run = (loop / "run.json").read_bytes()
    small = samples()
    ours = (ResilientError, ManifestError)
    return [
        _json("manifest", manifest, _manifest, ours, written=_indented),
        _json("run", run, _run, (SchemaError,)),
        _json("show", run, _show, ()),
        _lines("events", small["events"], _events),
        _json("heartbeat", small["heartbeat"], _heartbeat, ()),
        _json("rollbacks", small["rollbacks"], _rollbacks, (ResilientError,)),
        _json("lock", small["lock"], _lock, ()),
        _json("reason", small["reason"], _reason, ()),
    ]


def _json(
    name: str,
    seed: bytes,
    read: Callable[[bytes], object],
    ours: tuple[type[BaseException], ...],
    written: Callable[[Any], bytes] = trees.compact,
) -> Target:
    def mutate(random: Random) -> Files:
        if random.random() < 0.3:
            return {FILE: mutations.mutated(seed, random)}
        return {FILE: trees.mutated(seed, random, written)}

    def read_file(files: Files) -> object:
        return read(files[FILE])

    return Target(name, {FILE: seed}, mutate, read_file, ours, share=0.4)


def _lines(name: str, seed: bytes, read: Callable[[bytes], object]) -> Target:
    def mutate(random: Random) -> Files:
        lines = seed.splitlines(keepends=True)
        at = random.randrange(len(lines))
        lines[at] = trees.mutated(lines[at], random, trees.compact) + b"\n"
        raw = b"".join(lines)
        return {FILE: mutations.mutated(raw, random) if at % 3 == 0 else raw}

    def read_file(files: Files) -> object:
        return read(files[FILE])

    return Target(name, {FILE: seed}, mutate, read_file, (), share=0.4)


def _indented(value: Any) -> bytes:
    if isinstance(value, dict):
        with contextlib.suppress(RecursionError):
            return resealed({k: v for k, v in value.items() if k != "xxh3_128"})
    return trees.compact(value)


def _manifest(raw: bytes) -> None:
    if raw.startswith(b'{\n "xxh3_128": "'):
        raw = sealed(raw)
    again = Manifest.from_bytes(raw)
    assert Manifest.from_bytes(again.to_bytes()) == again or again.metrics


def _run(raw: bytes) -> None:
    run_json.decoded(parse(raw))


def _show(raw: bytes) -> None:
    save_run(Store("."), raw)
    shown("show")


def _events(raw: bytes) -> None:
    Path("events.jsonl").write_bytes(raw)
    for event in read_events("."):
        assert isinstance(event["event"], str)
    read_attempts(Path())
    goodput.goodput(".")
    shown("report")


def _heartbeat(raw: bytes) -> None:
    Path("heartbeat").write_bytes(raw)
    heartbeat.read("heartbeat")
    heartbeat.last_words(Path())


def _rollbacks(raw: bytes) -> None:
    Path("rollbacks.json").write_bytes(raw)
    rollback.read(Path())


def _lock(raw: bytes) -> None:
    with DirectoryLock("."):
        Path("lock").write_bytes(raw)
        try:
            DirectoryLock(".").acquire()
        except ResilientError as error:
            assert_printable(str(error))
            return
    raise AssertionError("two have the lock")


def _reason(raw: bytes) -> None:
    Path("quarantine", f"{FIT}-1").mkdir(parents=True)
    Path("quarantine", f"{FIT}-1.reason.json").write_bytes(raw)
    (reason,) = quarantine.entries(Path()).values()
    assert isinstance(reason.open, bool)
    store = Store(".")
    try:
        store.load_newest(None)
    except ResilientError as error:
        assert_printable(str(error))
    shown("ls")
    quarantine.settle(store.directory)


def shown(command: str, directory: str = ".") -> None:
    """Let our command show it, and see that a terminal obeys nothing in it."""
    for form in ((), ("--json",)):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            assert main([command, directory, *form]) != 2  # a ValueError of no kind
        assert_printable(out.getvalue())
        if form:
            json.loads(out.getvalue())


def assert_printable(text: str) -> None:
    odd = [c for c in text if not c.isprintable() and c not in "\n\t"]
    odd = [c for c in odd if ord(c) < 160 or "\u2028" <= c <= "\u202e"]
    assert not odd, f"it shows {odd[:5]!a}"
