"""A power cut at any moment: the checkpoint before, or the new one.

The calls of real saves are recorded, and what a disk may have kept of them is put
together from that, see ``support.power_cut``; the library recovers each such directory.
"""

import contextlib
import itertools
import json
import os
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import pytest
from support.checkpoint_samples import RAM, newest_good, save
from support.promises import Promise, cut_power, kept_in_mind, recovered
from support.recording import Killed, Recorder
from support.saving_together import Member, Tensors

from resilient.backends.base import Part
from resilient.policies import latest
from resilient.progress import Progress
from resilient.saving.run_json import VariablesRun
from resilient.saving.snapshot import NOWHERE, Snapshot
from resilient.saving.writer import Committer
from resilient.storage import files, layout
from resilient.storage.lock import DirectoryLock
from resilient.storage.recovery import remove_stale_staging
from resilient.storage.store import Store
from resilient.telemetry.events import Events

pytestmark = pytest.mark.once

KILLS = int(os.environ.get("RESILIENT_KILLS", "1000"))


@pytest.fixture
def ram():
    with tempfile.TemporaryDirectory(dir=RAM, prefix="resilient-") as directory:
        yield Path(directory)


def saves(store, recorder):
    for step in (10, 20, 30):
        save(store, step)
        store.prune(latest(2))


def replaces(store, recorder):
    save(store, 10)
    for version in range(3):
        save(store, 20, version=version)


def prunes(store, recorder):
    for step in (10, 20, 30, 40):
        save(store, step)
    store.prune(latest(1))


def rolls_back(store, recorder):
    for step in (10, 20, 30):
        save(store, step)
    for number in (1, 2):
        store.discard_after(10)
        note(store, recorder, json.dumps([number]))
        save(store, 20, version=number)


def starts_over(store, recorder):
    save(store, 10)
    save(store, 20)
    store.discard_all()
    save(store, 10, version=1)


def finds_damage(store, recorder):
    save(store, 10)
    save(store, 20)
    recorder.mark("damaged", 20)
    damaged = store.directory / "step-00000020" / "run.json"
    damaged.write_bytes(b"")
    files.sync(damaged)
    newest_good(store)
    save(store, 30)


def note(store, recorder, text):
    """What a rollback does last."""
    recorder.mark("noting", text)
    files.replace_file(store.directory / layout.ROLLBACKS, text.encode())
    recorder.mark("noted", text)


def together(store, recorder):
    """Two processes, each with its part."""
    up, down = Queue(), Queue()
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(save_part, store, Member(1, up, down))
        save_part(store, Member(0, up, down))
        other.result()


def save_part(store, member):
    events = Events(store.directory, process=member.index)
    committer = Committer(store, latest(2), events, {}, member)

    part = Part(member.index, member.count)
    for step in (10, 20, 30):
        progress, tensors = Progress(step, 0, step), Tensors(step, member.index)
        staging = f"step-{step:08d}.tmp-0123456789"
        committer.process(
            Snapshot(
                *(VariablesRun(), NOWHERE, tensors, progress, part), staging=staging
            )
        )


SCENARIOS = [saves, replaces, prunes, rolls_back, starts_over, finds_damage]


def begins(store, recorder):
    """What the next process does first."""
    remove_stale_staging(store.directory)
    newest_good(store)


def begins_and_saves(store, recorder):
    begins(store, recorder)
    save(store, 50)
    store.prune(latest(1))


def attempt(recorder, scenario, kill_in=None):
    """Whether a process that does this got to its end."""
    recorder.kill_in = kill_in
    try:
        with DirectoryLock(recorder.root / "run") as lock:
            scenario(Store(lock.directory), recorder)
    except Killed:
        return False
    finally:
        recorder.kill_in = None
    return True


@contextlib.contextmanager
def recording(ram, **options):
    """A recorder of a new directory, and what is saved in it."""
    disk = ram / uuid.uuid4().hex
    disk.mkdir()
    with Recorder(disk, **options) as recorder, kept_in_mind(recorder) as saved:
        yield recorder, saved


def nothing(_checkpoint):
    return None


def recover_and_save(home, promise):
    store = recovered(home, promise, nothing)
    save(store, 60)
    store.prune(latest(1))
    assert newest_good(store).step == 60


def killed_then_cut(ram, scenario, number, following, states):
    """Power cuts after a kill at a call; whether the process got to its end before."""
    with recording(ram) as (recorder, saved):
        over = attempt(recorder, scenario, number)
        first = len(recorder.events) - 1
        attempt(recorder, following)
    events, promise = recorder.events, Promise(saved)
    cut_power(events, promise, recover_and_save, states, seed=number, first=first)
    return over


@pytest.mark.parametrize("scenario", [*SCENARIOS, together])
def test_nothing_is_lost(ram, scenario):
    with recording(ram) as (recorder, saved):
        assert attempt(recorder, scenario)
    cut_power(recorder.events, Promise(saved), recover_and_save, 40, seed=0)


@pytest.mark.parametrize(
    ("scenario", "states"), [(saves, 30), (replaces, 90), (prunes, 30)]
)
def test_what_a_killed_process_renamed_may_still_be_undone(ram, scenario, states):
    """The next process builds on what the disk does not know yet."""
    with recording(ram) as (recorder, _):
        attempt(recorder, scenario)
    renames = [n for n, call in enumerate(recorder.calls, 1) if call == "rename"]
    for number in renames[-3:]:
        killed_then_cut(ram, scenario, number, begins, states)


@pytest.mark.parametrize(
    "forgotten",
    ["weights.bin", "manifest.json", "variables", r"step-.*\.tmp-.*", "run"],
)
def test_each_sync_is_needed(ram, forgotten):
    """Or this module would show nothing."""
    with recording(ram, forgets=forgotten) as (recorder, saved):
        attempt(recorder, saves)
    with pytest.raises(AssertionError, match="after event"):
        cut_power(recorder.events, Promise(saved), recover_and_save, 200, seed=0)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", [*SCENARIOS, together])
def test_nothing_is_lost_in_many_states(ram, scenario):
    with recording(ram) as (recorder, saved):
        assert attempt(recorder, scenario)
    cut_power(recorder.events, Promise(saved), recover_and_save, 5 * KILLS, seed=1)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_is_lost_after_a_kill_at_each_call(ram, scenario):
    for number in itertools.count():
        states = max(1, KILLS // 10)
        if killed_then_cut(ram, scenario, number, begins_and_saves, states):
            break
