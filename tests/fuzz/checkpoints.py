"""Checkpoints: JSON with right checksums again, and any of their files without.

A library may crash on a file of its own with a right checksum that somebody forged: who
can do that is trusted. Of this backend, and of others where their files can be read.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import keras
import numpy as np
import xxhash
from another_backend import CHECKPOINTS, FIT, LIBRARIES, LOOP
from support.manifests import resealed

from resilient.backends import BACKENDS, get_backend
from resilient.saving.record import PartReader
from resilient.saving.snapshot import UNCHANGED, VARIABLES
from resilient.storage.store import Store

from . import mutations, trees
from .target import Files, Target
from .texts import shown

MANIFEST = "manifest.json"
BACKEND = keras.backend.backend()
KINDS = {"fit": FIT, "loop": LOOP}


def targets() -> list[Target]:
    found = []
    for kind in KINDS:
        files = stored(kind)
        read, sealed = _read_sealed(kind), f"{BACKEND} {kind} sealed"
        found.append(Target(sealed, files, mutation(files), read, share=2))
        damaged = f"{BACKEND} {kind} damaged"
        found.append(Target(damaged, files, _damage(files), _unharmed(files, kind)))
    files, name = shared(stored("loop")), f"{BACKEND} unchanged tensors"
    found.append(Target(name, files, mutation(files), _read_sealed("loop")))
    for other in BACKENDS:
        if other != BACKEND and find_spec(LIBRARIES[other]):
            import_module(f"resilient.backends.{other}_files")  # starts processes
            files, name = stored("fit", other), f"{BACKEND} reads {other}"
            found.append(Target(name, files, mutation(files), _elsewhere))
    return found


def stored(kind: str, backend: str = BACKEND) -> Files:
    """The files of a checkpoint, by path."""
    return _files(CHECKPOINTS / backend / KINDS[kind])


def _files(root: Path) -> Files:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(paths)}


def shared(files: Files) -> Files:
    """The same with half of the tensors in files that two checkpoints may share."""
    backend = get_backend()
    with tempfile.TemporaryDirectory() as directory:
        step = lay_out(files, "loop", Path(directory))
        _, saved = Store(step.parent).load(_number(step), PartReader(backend))
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


def mutation(files: Files) -> Callable[[Random], Files]:
    """Changes JSON by its nodes."""
    texts = [name for name in files if name.endswith(".json")]

    def mutate(random: Random) -> Files:
        name = random.choice(("run.json", *texts))
        return {name: trees.mutated(files[name], random, trees.compact)}

    return mutate


def _damage(files: Files) -> Callable[[Random], Files]:
    def mutate(random: Random) -> Files:
        name = random.choice((MANIFEST, *files))
        return {name: mutations.mutated(files[name], random, [*files.values()])}

    return mutate


def lay_out(files: Files, kind: str, run: Path = Path("run")) -> Path:
    """A run with this checkpoint; returns the path of that."""
    step = run / Path(KINDS[kind]).name
    for name, content in files.items():
        path = step / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return step.absolute()


def _number(step: Path) -> int:
    return int(step.name.partition("-")[2])


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


def _read_sealed(kind: str) -> Callable[[Files], None]:
    def read(files: Files) -> None:
        step = lay_out(files, kind)
        seal(step, files)
        try:
            _content(step)
        finally:
            shown("ls", directory=str(step.parent))
            shown("show", directory=str(step))

    return read


def _elsewhere(files: Files) -> None:
    step = lay_out(files, "fit")
    seal(step, files)
    reads = PartReader(get_backend(BACKEND), elsewhere=True)
    _, saved = Store(step.parent).load(_number(step), reads)
    saved.positions()


def _unharmed(original: Files, kind: str) -> Callable[[Files], None]:
    """What can be read is what was there."""
    expected: list[Any] = []

    def read(files: Files) -> None:
        step = lay_out(files, kind)
        if not expected and files == original:
            expected.append(_content(step))
        found = _content(step)
        assert not expected or found == expected[0], "other content was read"

    return read


def _content(step: Path) -> tuple[Any, ...]:
    """All that is read of a checkpoint, comparable."""
    _, saved = Store(step.parent).load(_number(step), PartReader(get_backend(BACKEND)))
    arrays = {name: np.asarray(each) for name, each in saved.tensors.items()}
    tensors = {n: (a.dtype.name, a.shape, a.tobytes()) for n, a in arrays.items()}
    return saved.run, saved.position, tensors
