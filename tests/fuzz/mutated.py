"""Every reader, with what is made of whole files:

python -m fuzz.mutated SECONDS SEED FINDINGS [TARGETS]
"""

import contextlib
import io
import logging
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import keras

from . import checkpoints, imports, resumes, texts
from .findings import Findings
from .oracle import Finding
from .target import Bench, Target

_TRAINING = 0.25  # of the time
_ROOM = 2 << 30  # bytes that a process may take beside what it has


def targets(only: str = "") -> list[Target]:
    found = [*texts.targets(), *checkpoints.targets()]
    found += [*imports.targets(), *resumes.targets()]
    return [target for target in found if only in target.name]


def main(seconds: str, seed: str, directory: str, only: str = "") -> None:
    logging.disable()
    keras.config.disable_traceback_filtering()
    began, random, counts = time.monotonic(), Random(int(seed)), Counter[str]()
    found, bench = Findings(Path(directory)), Bench(Path(tempfile.mkdtemp()))
    every = targets(only)
    with contextlib.redirect_stdout(io.StringIO()):
        for target in every:
            bench.warm_up(target)
        ready, trained = time.monotonic(), 0.0
        while time.monotonic() - began < float(seconds):
            if sum(counts.values()) % 100 == 0:
                _limit_memory()
            trains = trained < _TRAINING * (time.monotonic() - ready)
            some = [each for each in every if each.reading != trains] or every
            (target,) = random.choices(some, [each.share for each in some])
            before = time.monotonic()
            counts[_outcome(bench, found, target, random)] += 1
            trained += 0 if target.reading else time.monotonic() - before
    total = sum(counts.values())
    speed = total / max(1e-3, time.monotonic() - ready)
    said = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(9))
    print(f"{total:,} cases, {speed:.0f} a second: {said}")


def _outcome(bench: Bench, found: Findings, target: Target, random: Random) -> str:
    try:
        changed = target.mutate(random)
    except Exception:  # a library could not take apart what was changed before
        return "not mutated"
    try:
        with found.kept(target, changed):
            return bench.run(target, changed)
    except Finding:
        return "found"


def _limit_memory() -> None:
    """So that no more can be taken: a request for it is an error, or the end."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + _ROOM
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(*sys.argv[1:])
