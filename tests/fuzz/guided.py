"""The small readers once more, led by which lines of ours they reach: with Atheris.

    python -m fuzz.guided SECONDS SEED FINDINGS

Inputs are one byte that chooses the reader, and then what it reads.
"""

import contextlib
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(
    include=["resilient.serialization", "resilient.storage", "resilient.saving"]
):
    import keras  # noqa: F401  (its arrays and tensors are among the values)

    from . import mutations, texts, trees

from .findings import Findings
from .oracle import Finding
from .target import CORPUS, Bench, Target


def main(seconds: str, seed: str, directory: str) -> None:
    logging.disable()
    found, targets = Findings(Path(directory)), texts.targets()
    bench = Bench(Path(tempfile.mkdtemp()))
    for target in targets:
        bench.warm_up(target)

    def one_input(data: bytes) -> None:
        target = targets[data[0] % len(targets)] if data else targets[0]
        with found.kept(target, {texts.FILE: data[1:]}), contextlib.suppress(Finding):
            bench.run(target, {texts.FILE: data[1:]})

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            return atheris.Mutate(data, most)
        with contextlib.suppress(ValueError, RecursionError):
            return (data[:1] + trees.mutated(data[1:], random, trees.compact))[:most]
        return mutations.mutated(data, random)[:most]

    seeds = Path(tempfile.mkdtemp())
    for name, number, content in _seeds(targets):
        (seeds / name).write_bytes(bytes([number]) + content)
    options = [f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=20000"]
    options += [
        "-timeout=300",
        "-rss_limit_mb=0",
        "-verbosity=0",
        "-print_final_stats=1",
    ]
    arguments = [sys.argv[0], *options, str(seeds)]
    atheris.Setup(arguments, one_input, custom_mutator=mutated)
    atheris.Fuzz()


def _seeds(targets: list[Target]) -> Iterator[tuple[str, int, bytes]]:
    """Files as they should be, and those of the corpus; and which reader reads them."""
    numbers = {target.name: number for number, target in enumerate(targets)}
    for name, number in numbers.items():
        yield name, number, targets[number].files[texts.FILE]
    for path in CORPUS.glob("any-*.json"):
        entry = path.read_text()
        number = numbers[json.loads(entry)["target"]]
        yield path.stem, number, targets[number].changed(entry)[texts.FILE]


if __name__ == "__main__":
    main(*sys.argv[1:])
