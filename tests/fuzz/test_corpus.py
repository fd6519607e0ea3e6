"""What was found stays mended; and a little of what ``nox -s fuzz`` does for longer."""

import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest

from .target import CORPUS, Bench, Target

BACKEND = keras.backend.backend()
CASES = 8  # of each target that is not trained

pytestmark = [
    pytest.mark.xdist_group("fuzz"),  # makes the targets once
    pytest.mark.filterwarnings(
        "ignore"
    ),  # what is mutated warns of all kinds of things
]


@pytest.fixture(scope="module")
def targets() -> dict[str, Target]:
    from . import mutated

    return {target.name: target for target in mutated.targets()}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Logs are not what these tests are about."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def entries() -> list[Path]:
    """Those of readers that have no backend, and of this one."""
    found = sorted(CORPUS.glob("*.json"))
    others = {"tensorflow", "jax", "torch"} - {BACKEND}
    return [path for path in found if path.name.partition("-")[0] not in others]


@pytest.mark.parametrize("path", entries(), ids=lambda path: path.stem)
def test_what_was_found_before(
    path: Path, targets: dict[str, Target], bench: Bench
) -> None:
    entry = path.read_text()
    target = targets[json.loads(entry)["target"]]
    bench.warm_up(target, 4)
    bench.run(target, target.changed(entry))


@pytest.mark.long  # beside plain nox, `.ci/run` reads mutated files for two minutes
def test_a_few_more(targets: dict[str, Target], bench: Bench) -> None:
    generator = random.Random(7)
    for target in targets.values():
        if target.reading:
            bench.warm_up(target, 4)
            for _ in range(CASES):
                bench.run(target, target.mutate(generator))
