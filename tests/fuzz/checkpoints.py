"""Released checkpoints: with right checksums again, and without.

Of this backend, and of others where their formats can be read here.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import keras
import numpy as np
import xxhash
from support.manifests import resealed

from resilient.backends import BACKENDS, get_backend
from resilient.errors import ResilientError
from resilient.saving.part_files import UNCHANGED, VARIABLES
from resilient.saving.record import PartReader
from resilient.storage.store import Store

from . import formats, mutations, trees
from .seeds import RELEASED
from .target import Files, Target
from .texts import STEP, shown

MANIFEST = "manifest.json"
NUMBER = int(STEP.partition("-")[2])
BACKEND = keras.backend.backend()
KINDS = ("fit", "loop", "variables")


def targets() -> list[Target]:
    found = []
    for kind in KINDS:
        files = released(kind)
        sealed = f"{BACKEND} {kind} sealed"
        found.append(Target(sealed, files, mutation(files), _read_sealed, share=2))
        damaged = f"{BACKEND} {kind} damaged"
        found.append(Target(damaged, files, _damage(files), _unharmed(files)))
    files = shared(released("variables"))
    change = mutation(files)
    found.append(Target(f"{BACKEND} unchanged tensors", files, change, _read_sealed))
    for other in BACKENDS:
        if other != BACKEND and (other != "jax" or find_spec("tensorstore")):
            files = released("fit", other)
            change = mutation(files, 0.4, other)
            found.append(Target(f"{BACKEND} reads {other}", files, change, _elsewhere))
    return found


def released(kind: str, backend: str = BACKEND) -> Files:
    """The files of a checkpoint, by path."""
    return _files(RELEASED / backend / kind / STEP)


def _files(root: Path) -> Files:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(paths)}


def shared(files: Files) -> Files:
    """The same with half of the tensors in files that two checkpoints may share."""
    backend = get_backend()
    with tempfile.TemporaryDirectory() as directory:
        step = lay_out(files, Path(directory))
        _, saved = Store(step.parent).load(NUMBER, PartReader(backend))
        names = sorted(saved.tensors)
        arrays = {name: np.array(saved.tensors[name]) for name in names}
        shutil.rmtree(step / VARIABLES)
        (step / VARIABLES / UNCHANGED).mkdir(parents=True)
        snapshot = backend.snapshot(arrays)
        snapshot.write(str(step / VARIABLES / UNCHANGED), names=names[::2])
        snapshot.write(str(step / VARIABLES), names=names[1::2])
        found = _files(step)
    manifest = json.loads(found[MANIFEST])
    manifest["files"] = {
        name: _record(content, {"size": 0, "xxh3_128": ""})
        for name, content in found.items()
        if name != MANIFEST
    }
    manifest.pop("xxh3_128")
    return found | {MANIFEST: resealed(manifest)}


def mutation(
    files: Files, json_share: float = 0.6, backend: str = BACKEND
) -> Callable[[Random], dict[str, bytes]]:
    """Changes JSON by its nodes, a backend's files by what they are, or bytes."""
    texts = [name for name in files if name.endswith(".json")]
    binary = [name for name in files if name not in texts]

    def mutate(random: Random) -> dict[str, bytes]:
        if random.random() < json_share:
            name = random.choice(("run.json", *texts))
            return {name: trees.mutated(files[name], random, trees.compact)}
        name = random.choice(binary)
        if random.random() < 0.6:
            return formats.mutated(files, random, backend)
        return {name: mutations.mutated(files[name], random, [*files.values()])}

    return mutate


def _damage(files: Files) -> Callable[[Random], Files]:
    def mutate(random: Random) -> Files:
        name = random.choice((MANIFEST, *files))
        return {name: mutations.mutated(files[name], random)}

    return mutate


def lay_out(files: Files, run: Path = Path("run")) -> Path:
    """A run with this checkpoint; returns the path of that."""
    step = run / STEP
    for name, content in files.items():
        path = step / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return step.absolute()


def seal(step: Path, files: Files) -> None:
    """Let the manifest say that these are the files."""
    with contextlib.suppress(ValueError):
        body = json.loads(files[MANIFEST])
        if isinstance(body, dict) and isinstance(body.get("files"), dict):
            body["files"] |= {
                name: _record(content, body["files"].get(name))
                for name, content in files.items()
                if name in body["files"]
            }
        if isinstance(body, dict):
            body.pop("xxh3_128", None)
            (step / MANIFEST).write_bytes(resealed(body))


def _record(content: bytes, said: Any) -> Any:
    if not isinstance(said, dict):
        return said
    right = {"size": len(content), "xxh3_128": xxhash.xxh3_128_hexdigest(content)}
    return said | {key: right[key] for key in right if key in said}


def _read_sealed(files: Files) -> None:
    step = lay_out(files)
    seal(step, files)
    try:
        _content(step)
    finally:
        shown("ls", directory=str(step.parent))
        shown("show", str(NUMBER), directory=str(step.parent))


def _elsewhere(files: Files) -> None:
    step = lay_out(files)
    seal(step, files)
    reads = PartReader(get_backend(BACKEND), elsewhere=True)
    _, saved = Store(step.parent).load(NUMBER, reads)
    saved.positions()


def _unharmed(original: Files) -> Callable[[Files], None]:
    """What can be read is what was there."""
    expected: list[Any] = []

    def read(files: Files) -> None:
        step = lay_out(files)
        if not expected and files == original:
            expected.append(_content(step))
        try:
            found = _content(step)
        except ResilientError:
            raise
        assert not expected or found == expected[0], "other content was read"

    return read


def _content(step: Path) -> tuple[Any, ...]:
    """All that is read of a checkpoint, comparable."""
    _, saved = Store(step.parent).load(NUMBER, PartReader(get_backend(BACKEND)))
    arrays = {name: np.asarray(each) for name, each in saved.tensors.items()}
    tensors = {n: (a.dtype.name, a.shape, a.tobytes()) for n, a in arrays.items()}
    return saved.run, saved.position, tensors
