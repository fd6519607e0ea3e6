"""Several processes, one or more killed: all of them end as if nothing had happened.

``RESILIENT_KILLS`` is the number of kills of the long session, with four processes.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gangs import HERE, End, Run
from kill.harness import KILLED, assert_same
from own_data import BACKEND, NO_PARTS, OWN_DATA, OWN_DATA_BACKENDS
from support.forking import environment

KILLS = int(os.environ.get("RESILIENT_KILLS", "60"))
MET = 10  # calls, after which the processes have found each other
EVERY = {"save_freq": 1, "keep": 2}
LAYOUTS = ["data", "model"] if OWN_DATA else ["data"]
# The short session divides variables on each backend that can, in one way on each.
IN_SAVES = [
    pytest.param("data", marks=pytest.mark.long),
    pytest.param("model", marks=pytest.mark.spread(over=OWN_DATA_BACKENDS[-1:])),
][: len(LAYOUTS)]

pytestmark = [
    pytest.mark.timeout(900),  # tens of starts of several processes
    pytest.mark.skipif(NO_PARTS, reason="refused, see test_loops.py"),
]

MakeRun = Callable[..., Run]
Expected = Callable[..., list[End]]


@pytest.fixture
def run_of(tmp_path: Path) -> MakeRun:
    """Make a ``Run`` in a directory of its own."""

    def make(layout: str = "data", **settings: Any) -> Run:
        return Run(tmp_path / "run", layout, **({"options": EVERY} | settings))

    return make


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """What as many processes leave when nothing goes wrong."""
    known: dict[tuple[str, int], list[End]] = {}

    def expected(layout: str = "data", count: int = 2) -> list[End]:
        if (layout, count) not in known:
            home = tmp_path_factory.mktemp("uninterrupted") / "run"
            known[layout, count] = Run(home, layout, count, EVERY)()
        return known[layout, count]

    return expected


def check(run: Run, expected: Expected) -> list[End]:
    """All resume from one checkpoint, and end as if nothing had happened."""
    ends = run()
    assert len({end.trained for end in ends}) == 1
    for process, (one, other) in enumerate(
        zip(expected(run.layout, run.count), ends, strict=True)
    ):
        assert_same(one.record, other.record, f"in process {process}")
    return ends


def kill(run: Run, kills: dict[int, str], **settings: Any) -> list[End]:
    """An attempt in which some are killed: the others say why they end."""
    before = run.committed()
    ends = run(kills, **settings)
    after = run.committed()
    assert not before or after, "the last checkpoint is lost"
    assert not before or max(after) >= max(before), "a commit was undone"
    if any(end.status != 0 for end in ends):
        for process, end in enumerate(ends):
            if process not in kills:
                assert end.status == 1, run.tell(ends)
                assert "PeerLostError: Another process" in end.text, run.tell(ends)
    return ends


def is_killed(ends: list[End]) -> bool:
    return any(end.status == KILLED for end in ends)


@pytest.mark.skipif(
    BACKEND == "torch" and not OWN_DATA, reason="Keras's own trains in one process"
)
@pytest.mark.long  # test_worker_sources.py compares with Keras alone, too
@pytest.mark.parametrize("layout", LAYOUTS)
def test_trains_as_keras_does(layout: str, run_of: MakeRun, uninterrupted: Expected):
    plain = run_of(layout)(mode="keras")
    assert len(plain) == 2
    for one, other in zip(plain, uninterrupted(layout), strict=True):
        assert_same(one.record, other.record)


SCHEDULES = {
    "0 first": [
        {1: "train_begin"},
        {0: "train_batch_end@0:2"},
        {1: "train_batch_end@1:1"},  # twice in one epoch
        {0: "train_batch_end@1:3"},
    ],
    "1 first": [
        {1: "epoch_end@0"},
        {0: "epoch_begin@1"},
        {1: "test_batch_end@1:0"},
        {0: "train_end"},
    ],
}


@pytest.mark.long  # `nox -s exact` kills two workers at batches, too
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_at_batches(
    layout: str, schedule: str, run_of: MakeRun, uninterrupted: Expected
):
    """Either process, in turn; none of the others' checkpoints are lost."""
    background = schedule == "1 first"
    options = {"save_freq": 2, "keep": 2}
    run = run_of(layout, options=options, background=background)
    for kills in SCHEDULES[schedule]:
        assert is_killed(kill(run, kills))
    check(run, uninterrupted)


@pytest.mark.skipif(
    BACKEND != "torch" or not OWN_DATA, reason="there are no buckets of gradients"
)
def test_more_than_two_ranks_sum_gradients_in_the_same_order(
    run_of: MakeRun, uninterrupted: Expected
):
    """Though DistributedDataParallel makes its buckets anew after the first step."""
    run = run_of("reversed", count=3, options={"save_freq": 4, "keep": 2})
    assert is_killed(kill(run, {0: "train_batch_end@1:3"}))
    check(run, uninterrupted)


@pytest.mark.spread(over=OWN_DATA_BACKENDS[:1])
@pytest.mark.skipif(not OWN_DATA, reason="Keras divides no variables")
def test_killed_where_batches_and_variables_are_divided(
    run_of: MakeRun, uninterrupted: Expected
):
    """Two by two: each part of a variable is in two processes."""
    run = run_of("both", count=4, options={"save_freq": 4, "keep": 2})
    for one, other in zip(run(mode="keras"), uninterrupted("both", 4), strict=True):
        assert_same(one.record, other.record)
    assert is_killed(kill(run, {0: "train_batch_end@1:3"}))
    assert is_killed(kill(run, {3: "train_batch_end@2:1"}))
    check(run, uninterrupted)


# Every word, and every call, is killed without Keras in ``tests/saving/test_parts.py``.
WORDS = ("gather part@2", "broadcast committed@2")
SOME_WORDS = {0: ("gather part@2", "publish@2", "published@2"), 1: WORDS}
ALL_WORDS = {0: (*WORDS, "publish@2", "published@2"), 1: WORDS}


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "words", [SOME_WORDS, pytest.param(ALL_WORDS, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("layout", IN_SAVES)
def test_killed_between_what_they_say_in_a_save(
    layout: str,
    words: dict[int, tuple[str, ...]],
    victim: int,
    run_of: MakeRun,
    uninterrupted: Expected,
):
    """Before a word of either process, and around the rename that commits."""
    run = run_of(layout)
    for point in words[victim]:
        assert is_killed(kill(run, {victim: point})), point
    check(run, uninterrupted)


@pytest.mark.long  # each call is killed without Keras, as above
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_at_calls_of_a_save(
    victim: int, run_of: MakeRun, uninterrupted: Expected
):
    """Before two of the calls that change the file system; ``long`` has many more."""
    calls = uninterrupted()[victim].calls
    last = len(calls) // 4
    numbers = sorted(random.Random(victim).sample(range(MET, last), 2), reverse=True)
    run = run_of()
    for number in numbers:
        assert is_killed(kill(run, {victim: f"call@{number}"})), calls[number]
    check(run, uninterrupted)


@pytest.mark.long  # `nox -s exact` kills two workers amid writes, too
def test_killed_while_training_goes_on(run_of: MakeRun, uninterrupted: Expected):
    """Each with a write in flight."""
    run = run_of(background=True)
    for kills in ({0: "train_batch_end@0:3"}, {1: "train_batch_end@1:3"}):
        assert is_killed(kill(run, kills))
    check(run, uninterrupted)


@pytest.mark.long  # tests/distributed/test_group.py stops a process without Keras
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_sleeps_is_lost(
    victim: int, run_of: MakeRun, uninterrupted: Expected
):
    run = run_of()
    stop = {victim: "train_batch_end@1:2 SIGSTOP"}
    ends = kill(run, stop, told={"RESILIENT_PEER_TIMEOUT": "5"})
    assert ends[victim].status == "stopped"
    assert "it sent no heartbeat for 5 seconds" in ends[1 - victim].text
    if victim:
        check(run, uninterrupted)


@pytest.mark.spread
def test_all_stop_at_one_step_when_one_is_asked_to(
    run_of: MakeRun, uninterrupted: Expected
):
    run = run_of(options={"save_freq": "epoch"})
    ends = run({1: "train_batch_end@1:2 SIGTERM"})
    assert [end.status for end in ends] == [143, 143], run.tell(ends)
    assert len(run.committed()) == 2  # of epoch 0, and of where it stopped
    ended = [
        event["step"]
        for name in ("events.jsonl", "events-1.jsonl")
        for event in events(run, name)
        if event["event"] == "preempted"
    ]
    step = int(run.committed()[-1].removeprefix("step-"))
    assert ended == [step, step]
    assert 8 < step < 12
    trained = check(run, uninterrupted)[0].trained
    assert trained[0] == (1, step - 6)


def events(run: Run, name: str) -> list[dict[str, Any]]:
    text = (run.home / "checkpoints" / name).read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.spread
def test_a_full_disk_under_one_part_is_an_error_in_all(
    run_of: MakeRun, uninterrupted: Expected
):
    flushes = [c for c in uninterrupted()[1].calls if c.startswith("fsync")]
    run = run_of()
    ends = run({1: f"no space@{len(flushes) // 2}"})
    for end in ends:
        assert end.status == 1, run.tell(ends)
        assert (
            "CheckpointWriteError: In process 1 of 2: The checkpoint" in end.text
            or ("CheckpointWriteError: The checkpoint at " in end.text)
        )
        assert "No space left on device (ENOSPC)" in end.text
        assert "Earlier checkpoints are intact" in end.text
    assert len(run.committed()) == 2
    check(run, uninterrupted)


@pytest.mark.spread
@pytest.mark.parametrize(
    "files",
    [
        pytest.param("run/process-1-of-2.json", marks=pytest.mark.long),
        "variables/**/*",
    ],
)
def test_all_fall_back_where_the_part_of_one_is_damaged(
    files: str, run_of: MakeRun, uninterrupted: Expected
):
    """Or where tensors are, which libraries compare with checksums of their own."""
    run = run_of()
    kill(run, {0: "train_batch_end@1:3"})
    newest = run.home / "checkpoints" / run.committed()[-1]
    part = max(newest.glob(files), key=lambda path: path.stat().st_size)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    step = int(run.committed()[-2].removeprefix("step-"))
    trained = check(run, uninterrupted)[1].trained
    assert trained[0] == (step // 6, step % 6)
    fallen = [e for e in events(run, "events.jsonl") if e["event"] == "fell back"]
    assert len(fallen) == 1
    assert part.name in fallen[0]["reason"]


@pytest.mark.spread
def test_the_supervisor_starts_both_again(run_of: MakeRun, uninterrupted: Expected):
    run = run_of()
    order = run.order({1: "train_batch_end@1:2"}, "resilient", once=True)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "resilient", "run", "--nproc", "2", "--"),
            *(sys.executable, str(HERE / "worker.py"), order.to_json()),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for process, end in enumerate(uninterrupted()):
        assert_same(end.record, run.left(order, process).record)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_four_processes_are_killed_at_random(
    layout: str, run_of: MakeRun, uninterrupted: Expected, tmp_path: Path
):
    """One or two of them, at any call or word or batch."""
    dice, killed = random.Random(1), 0
    most = [len(end.calls) // 3 for end in uninterrupted(layout, 4)]
    for chain in range(-(-KILLS // 6)):
        run = run_of(layout, count=4, background=dice.random() < 0.5)
        run.home = tmp_path / f"run-{chain}"
        for _ in range(6):
            victims = dice.sample(range(4), dice.choice([1, 1, 2]))
            kills = {victim: random_point(dice, victim, most) for victim in victims}
            ends = run(kills)
            killed += is_killed(ends)
            ways = {0, 1, KILLED}
            if 0 in victims and BACKEND == "jax":
                # It may see, before Gloo does, that its service died with process 0.
                ways.add(-signal.SIGABRT)
            assert all(end.status in ways for end in ends), run.tell(ends)
        check(run, uninterrupted)
    assert killed > KILLS // 3


def random_point(dice: random.Random, victim: int, most: list[int]) -> str:
    number = dice.randint(1, 4)
    words = ("broadcast boundary", "gather part", "broadcast committed")
    if victim == 0:
        words += ("publish", "published")
    return dice.choice(
        [
            f"call@{dice.randint(MET, most[victim])}",
            f"{dice.choice(words)}@{number}",
            f"train_batch_end@{dice.randint(0, 2)}:{dice.randint(0, 5)}",
        ]
    )
