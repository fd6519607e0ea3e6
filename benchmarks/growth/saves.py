"""What a save and a restore cost whoever saves, of a model that is given."""

import resource
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import keras
import subjects
from names import MEMORY, SUBJECTS

# Name of what is measured -> samples, in seconds.
Samples = dict[str, list[float]]

MEASURED: Collection[str] = SUBJECTS  # unless only some are asked for
REPEATS = 5
_LEAST = 3
_ENOUGH = 10.0  # seconds of saves of one subject


def of_subjects(model: keras.Model, directory: Path) -> Samples:
    """One after the other, each in a directory of its own."""
    found: Samples = {}
    for kind in subjects.available()[0]:
        if kind.name not in MEASURED:
            continue
        place = directory / "saves"
        place.mkdir()
        subject = kind(model, place)
        try:
            stalls, saves = [], []
            while len(saves) < _LEAST or (
                len(saves) < REPEATS and sum(saves) < _ENOUGH
            ):
                subject.tidy()
                began = time.perf_counter()
                subject.save()
                stalls.append(time.perf_counter() - began)
                subject.wait()
                if not subject.flushes:
                    subjects.flush(place)
                saves.append(time.perf_counter() - began)
            found[f"{kind.name}: stall"], found[f"{kind.name}: save"] = stalls, saves
            # The first may wait for memory that a virtual machine has yet to get.
            restores = timed(subject.restore, _LEAST + 1)[1:]
            found[f"{kind.name}: restore"] = restores
            if kind.background:
                found[MEMORY] = [memory()]
        finally:
            subject.close()
            shutil.rmtree(place)
    return found


def timed(do: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """How long it takes, that many times."""
    return list(_samples(do, repeats))


def _samples(do: Callable[[], object], repeats: int) -> Iterator[float]:
    for _ in range(repeats):
        began = time.perf_counter()
        do()
        yield time.perf_counter() - began


def memory() -> float:
    """Gigabytes that this process took at most."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
