"""Two processes, every source of data: as Keras trains, and as if never killed.

Three starts for many fits. The first trains them all, beside Keras alone, and copies
each checkpoint directory in the middle of its fit: what a SIGKILL would leave. The
second resumes all from these copies, but for the last, in which it is killed again;
the third goes on with that one, and has one more that is finished.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from own_data import BACKEND, NO_PARTS, OWN_DATA
from support import gang

from resilient.storage.store import Store

HERE = Path(__file__).parent
KIND = "own" if OWN_DATA else BACKEND
pytestmark = [
    pytest.mark.timeout(900),  # for many fits each
    pytest.mark.skipif(NO_PARTS, reason="refused, see test_loops.py"),
]
OWN, MORE, OTHERS = (pytest.mark.xdist_group(f"{n} workers' sources") for n in range(3))
GROUPS = [
    pytest.param("own", marks=OWN),
    pytest.param("more", marks=[MORE, pytest.mark.long]),
    pytest.param("others", marks=[OTHERS, pytest.mark.sources, pytest.mark.long]),
]

ROWS = "DataNotResumableError: The processes have different data"
REFUSED = {
    "tensorflow": {
        "arrays different": ROWS,
        "generator validated on": "DataNotResumableError: A Python generator",
    },
    "own": {
        "divided arrays": "ValueError: When using a multi-worker distribution",
        "one model, unequal": ROWS,
    },
    "torch": {
        "arrays different": ROWS,
        "arrays uneven": "ValueError: Each process must get the same number of rows",
        "loader unequal": ROWS,
        "generator unequal": ROWS,
    },
}[KIND]
# No seed; what Keras draws ahead to build a model is lost; each rank draws its part
# (Keras alone trains that only); threads that see what on_epoch_end changes; arrays
# that TensorFlow overwrites under Keras alone.
UNLIKE_KERAS = {
    "tensorflow": {"arrays unseeded", "data unseeded", "generator", "views"},
    "own": set(),
    "torch": {"sampler", "validated on sampler", "pydataset workers"},
}[KIND]


def started(directory, group, *arguments):
    """What each process told, by case; and whether they ended well."""
    ended = gang.run(
        HERE / "worker_sources.py", directory, group, *arguments, timeout=400
    )
    found = []
    for text in ended.outputs:
        lines = [line for line in text.splitlines() if line.startswith('["')]
        found.append(dict(json.loads(line) for line in lines))
    return found, ended


@pytest.fixture(scope="module", params=GROUPS)
def told(request, tmp_path_factory):
    """Of the three starts, what each process told, by case."""
    group, directory = request.param, tmp_path_factory.mktemp("sources")
    first, ended = started(directory, group)
    ended.check()
    copies = directory / "killed"
    names = [name for name in first[0] if (copies / name).is_dir()]
    for name in names:
        shutil.rmtree(directory / name)
        (copies / name).rename(directory / name)
    second, ended = started(directory, group, names[-1], *names)
    ended.check(-9, -9)
    third, ended = started(directory, group, "", names[0], names[-1])
    ended.check()
    return first, second, third


def trained(one):
    return one["history"], one["model"]


def test_all_processes_train_as_keras_does(told):
    """On torch as one process does, where sums are exact."""
    (mine, others), *_ = told
    names = mine.keys() - REFUSED
    assert names - UNLIKE_KERAS
    for name in names:
        assert trained(mine[name]["ours"]) == trained(others[name]["ours"]), name
        if name not in UNLIKE_KERAS:  # rank 0's random numbers count, on torch
            assert trained(mine[name]["ours"]) == trained(mine[name]["plain"]), name


def test_every_source_goes_on_where_it_was(told):
    first, second, third = told
    for whole, resumed, again in zip(first, second, third, strict=True):
        names = list(resumed)
        assert len(names) == len(whole.keys() - REFUSED) - 1
        for name in names:
            assert min(resumed[name]["restored"]) >= 2, name
            assert trained(resumed[name]["ours"]) == trained(whole[name]["ours"]), name
        finished, killed = again.values()
        for one in (finished, killed):
            assert one["restored"]
        assert trained(finished["ours"]) == trained(whole[names[0]]["ours"])
        assert trained(killed["ours"]) == trained(whole[[*again][-1]]["ours"])


def test_what_cannot_be_trained_together_is_refused_by_all(told):
    (mine, others), *_ = told
    refused = {name for name, case in mine.items() if "error" in case["ours"]}
    assert refused == mine.keys() & REFUSED.keys()
    for name in refused:
        for process in (mine, others):
            assert re.match(REFUSED[name], process[name]["ours"]["error"]), name


@pytest.mark.skipif(not OWN_DATA, reason="elsewhere each has rows of what is alike")
def test_processes_that_train_the_same_are_warned(told):
    for process in told[0]:
        assert process
        for name, case in process.items():
            said = case["ours"].get("warnings", [])
            assert len(set(said)) == (name == "arrays alike"), name


# TensorFlow's own pipelines wait for each other: who has no batch trains none.
LONGER = "validation" if BACKEND == "tensorflow" else "unknown length, 1 is longer"


@pytest.mark.parametrize(
    "name",
    [
        LONGER,
        pytest.param("1 validates alone", marks=pytest.mark.long),
        pytest.param("1 stops in the epoch", marks=pytest.mark.long),
    ],
)
def test_processes_that_go_different_ways_end_and_do_not_hang(name, tmp_path):
    script = HERE / "worker_trouble.py"
    ended = gang.run(script, tmp_path, name, timeout=200)
    assert "ResilientError: The processes" in "".join(ended.outputs)
    assert all(ended.statuses), ended.outputs


@pytest.mark.skipif(BACKEND != "torch", reason="elsewhere there is one copy for all")
@pytest.mark.parametrize(
    "name",
    [
        "1 changes weights",
        pytest.param(
            "an optimizer of torch",
            marks=pytest.mark.skipif(OWN_DATA, reason="its gradients are averaged"),
        ),
    ],
)
def test_processes_with_different_weights_commit_no_checkpoint(name, tmp_path):
    ended = gang.run(HERE / "worker_trouble.py", tmp_path, name, timeout=200)
    ended.check(3, 3)
    for output in ended.outputs:
        assert "ResilientError: The ranks have different weights" in output
    assert Store(tmp_path).checkpoints() == []


@pytest.mark.spread
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("0 has no key", marks=pytest.mark.long),
        pytest.param("1 has no key", marks=pytest.mark.long),
        "1 has another key",
    ],
)
def test_processes_with_different_keys_save_nothing(name, tmp_path):
    """The next start would refuse it, or nothing would be signed, unnoticed."""
    ended = gang.run(HERE / "worker_trouble.py", tmp_path, name, timeout=200)
    ended.check(3, 3)
    for output in ended.outputs:
        assert "RESILIENT_KEY is not the same in all processes" in output
        assert "canary" not in output
    assert Store(tmp_path).checkpoints() == []


@pytest.mark.spread
def test_a_process_that_is_lost_ends_the_other_which_says_so(tmp_path):
    """And does not wait for it at the exit."""
    ended = gang.run(HERE / "worker_trouble.py", tmp_path, "1 is lost", timeout=200)
    # 3 from the script, or 1 from the watchdog: TensorFlow may notice nothing itself.
    assert ended.statuses in ([3, 0], [1, 0]), ended.outputs
    assert "PeerLostError: Another process of this training" in ended.outputs[0]
