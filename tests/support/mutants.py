"""Mutants of a few packages: a sample of each package, chosen by a seed.

mutmut makes them all and runs every test that calls what it changed, which would take
days. Here a mutant meets a few seconds of these: some of the file that mirrors its
module, some of its package, and some others, the shortest first. So a survivor may be
killed by a test that had no turn.

    python tests/support/mutants.py --seed=1 --of-each=60
"""

import argparse
import json
import random
from collections import Counter
from pathlib import Path

from mutmut import __main__ as mutmut
from mutmut.mutation import trampoline
from mutmut.state import reset_state
from mutmut.stats import status_by_exit_code

# Tests of modules and packages, besides those that mirror them by name.
NEAR = {
    "fingerprint": ("tests/training/fit/test_compatibility",),
    "objects": ("tests/data/",),
    "topology": ("tests/training/test_inexact",),
    "weights": ("tests/convert/",),
}
# Of the tests of a module, those of its package, and others.
SECONDS = (6.0, 3.0, 2.0)
STATS = Path("mutants/mutmut-stats.json")
STATUSES = ("killed", "timeout", "survived", "no tests")
NOTICED = {"killed", "timeout"}
# A warning points to the first caller that is not ours; what chooses a mutant is ours.
trampoline.__name__ = "resilient"


def package_of(mutant: str) -> str:
    """``storage`` for ``resilient.storage.commit.x_publish__mutmut_3``."""
    return mutant.split(".")[1]


def generate() -> list[str]:
    """The names of all mutants, in an order that is the same each time."""
    Path("mutants").mkdir(exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    mutmut.create_mutants(max_children=1)
    return sorted(results())


def results() -> dict[str, str]:
    """What the tests said of each mutant."""
    mutants, _ = mutmut.collect_source_file_mutation_data(mutant_names=())
    return {name: status_by_exit_code[code] for _, name, code in mutants}


def sample(names: list[str], of_each: int, seed: int) -> list[str]:
    """Some of each package. A larger sample of the same seed has those of a smaller."""
    chosen = []
    for package in sorted({package_of(name) for name in names}):
        these = [name for name in names if package_of(name) == package]
        random.Random(f"{seed} {package}").shuffle(these)
        chosen += these[:of_each]
    return chosen


def how_far(function: str, test: str) -> int:
    """0 for a test of its module, 1 for one of its package, 2 for others."""
    _, package, *modules = function.split(".")[:-1]
    of_package = (f"tests/{package}/", *NEAR.get(package, ()))
    mirrors = [f"/test_{module}.py::" for module in modules]
    near = [place for module in modules for place in NEAR.get(module, ())]
    is_near = any(each in test for each in (*mirrors, *near))
    return 0 if is_near else 1 if test.startswith(of_package) else 2


def choose_tests() -> None:
    """Leave to each function the tests that are to be run for its mutants."""
    mutmut.collect_or_load_stats(
        mutmut.get_mutant_runner(), apply_config_invalidation=True
    )
    stats = json.loads(STATS.read_text())
    seconds = stats["duration_by_test"]
    for function, tests in stats["tests_by_mangled_function_name"].items():
        left, kept = list(SECONDS), []
        for test in sorted(tests, key=lambda test: (seconds[test], test)):
            far = how_far(function, test)
            left[far] -= seconds[test]
            if left[far] >= 0 or not kept:
                kept.append(test)
        stats["tests_by_mangled_function_name"][function] = kept
    STATS.write_text(json.dumps(stats))
    reset_state()  # it would add these to those that it knows


def table(names: list[str], chosen: list[str]) -> list[str]:
    """A row for each package."""
    found = results()
    columns = [*STATUSES, *sorted({found[name] for name in chosen} - {*STATUSES})]
    lines = [f"| package | mutants | tested | {' | '.join(columns)} |"]
    lines.append("|---" * (3 + len(columns)) + "|")
    for package in [*sorted(set(map(package_of, names))), ""]:
        of = [name for name in names if package in ("", package_of(name))]
        counts = Counter(found[name] for name in chosen if name in set(of))
        row = [package or "all", len(of), counts.total(), *(counts[c] for c in columns)]
        lines.append(f"| {' | '.join(map(str, row))} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--of-each", type=int, default=60, metavar="N")
    arguments = parser.parse_args()
    names = generate()
    chosen = sample(names, arguments.of_each, arguments.seed)
    choose_tests()
    mutmut._run(chosen, max_children=1)
    print(*table(names, chosen), sep="\n")
    found = results()
    print(*(f"{found[n]}: {n}" for n in chosen if found[n] not in NOTICED), sep="\n")


if __name__ == "__main__":
    main()
