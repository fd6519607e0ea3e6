"""A checkpoint as a later version of this library might leave it."""

import json
from pathlib import Path

import xxhash

from resilient.storage.manifest import SCHEMA

VERSION = "9.9"


def make_newer(checkpoint: Path) -> None:
    """Make a checkpoint one of the next schema, with a manifest that is whole."""
    path, zeros = checkpoint / "manifest.json", "0" * 32
    body = json.loads(path.read_text()) | {"xxh3_128": zeros, "schema": SCHEMA + 1}
    body["environment"] |= {"keras-resilient": VERSION}
    del body["metrics"], body["files"]  # what else it says is up to that schema
    raw = json.dumps(body | {"more": []}, indent=1) + "\n"
    checksum = xxhash.xxh3_128_hexdigest(raw.encode())
    path.write_text(raw.replace(zeros, checksum, 1))
