"""Manifests with any content, and a checksum of their own that is right."""

import json
from pathlib import Path

import xxhash

ZEROS = b"0" * 32


def sealed(raw: bytes) -> bytes:
    """The same with the checksum that it should have; it has another one, or zeros."""
    begin = b'{\n "xxh3_128": "'
    assert raw.startswith(begin)
    end = len(begin) + 32
    zeroed = begin + ZEROS + raw[end:]
    return begin + xxhash.xxh3_128_hexdigest(zeroed).encode() + raw[end:]


def resealed(body: dict) -> bytes:
    """What a manifest says, as a file."""
    body = {"xxh3_128": ZEROS.decode()} | body
    return sealed(json.dumps(body, indent=1).encode())


def replace(checkpoint: Path, name: str, content: bytes | None) -> None:
    """Give a file of a checkpoint another content, or none, that the manifest lists."""
    path = checkpoint / name
    if content is None:
        path.unlink()
        change(checkpoint, lambda said: said["files"].pop(name))
        return
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    checksum = xxhash.xxh3_128_hexdigest(content)
    record = {"size": len(content), "xxh3_128": checksum}
    change(checkpoint, lambda said: said["files"].setdefault(name, {}).update(record))


def change(checkpoint: Path, act) -> None:
    """Let `act` change what the manifest of a checkpoint says."""
    path = checkpoint / "manifest.json"
    body = json.loads(path.read_bytes())
    act(body)
    path.write_bytes(resealed(body))
