"""What several processes tell each other, and what happens when one is gone."""

import signal
from pathlib import Path

import pytest
from support.processes import started

pytestmark = pytest.mark.once


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


def test_process_0_tells_and_collects(directory: Path) -> None:
    body = """
for n in range(50):
    assert group.broadcast("a", n * n if group.index == 0 else None) == n * n
    said = group.gather("b", [group.index, n])
    assert said == ([] if group.index else [[k, n] for k in range(3)])
    if group.index == 2:
        group.request({"n": n})
group.gather("asked")
if group.index == 0:
    print([wish["n"] for wish in group.take_requests()], group.take_requests())
"""
    with started(body, 3, directory) as processes:
        ends = [process.end() for process in processes]
    assert ends == [(0, f"{list(range(50))} []\n"), (0, ""), (0, "")]
    assert list(directory.iterdir()) == []


def test_topics_do_not_mix_between_threads(directory: Path) -> None:
    body = """
def count(topic):
    for n in range(200):
        assert group.broadcast(topic, [topic, n]) == [topic, n]
        group.gather(topic, [topic, n])

threads = [threading.Thread(target=count, args=(t,)) for t in ("x", "y")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    with started(body, 2, directory) as processes:
        assert [process.end() for process in processes] == [(0, ""), (0, "")]


@pytest.mark.parametrize("victim", [0, 1])
def test_who_waits_for_a_killed_process_is_told(directory: Path, victim: int) -> None:
    body = """
print("met")
group.broadcast("never") if group.index else group.gather("never")
"""
    with started(body, 2, directory) as processes:
        for process in processes:
            assert process.line() == "met"
        # The survivor waits for the victim: process 0 for a part, 1 for what 0 says.
        processes[victim].send(signal.SIGKILL)
        status, out = processes[1 - victim].end()
    assert status == 1
    assert (
        f"PeerLostError: Another process of this training is gone, and the others "
        "cannot continue without it.\n"
        f"Received: process {victim} of 2: it was killed or lost"
    ) in out
    assert list(directory.iterdir()) == []


def test_a_process_that_is_stopped_is_lost_after_a_while(directory: Path) -> None:
    body = """
print("met")
if group.index:
    time.sleep(1000)
group.gather("never")
"""
    told = {"RESILIENT_PEER_TIMEOUT": "3"}
    with started(body, 2, directory, **told) as processes:
        processes[0].line()
        processes[1].line()
        processes[1].send(signal.SIGSTOP)
        status, out = processes[0].end()
    assert status == 1
    assert "process 1 of 2: it sent no heartbeat for 3 seconds" in out


def test_a_process_that_hangs_in_a_library_is_ended_when_another_is_lost(
    directory: Path,
) -> None:
    """It hangs in a library, as in a collective: nothing can be raised there."""
    body = """
print("met")
if group.index == 0:
    time.sleep(1000)
group.broadcast("never")
"""
    with started(body, 2, directory) as processes:
        processes[0].line()
        processes[1].line()
        processes[1].send(signal.SIGKILL)
        status, out = processes[0].end()
    assert status == 1
    assert out.startswith(
        "\nresilient.errors.PeerLostError: Another process of this training is gone"
    )
    assert "Traceback" not in out


def test_an_error_of_one_is_told_to_the_others(directory: Path) -> None:
    body = """
if group.index == 1:
    raise ValueError("the third row is odd")
group.gather("never")
"""
    with started(body, 2, directory) as processes:
        (_, out), (_, cause) = [process.end() for process in processes]
    assert "process 1 of 2: ValueError: the third row is odd" in out
    assert cause.endswith("ValueError: the third row is odd\n")
    assert "PeerLostError" not in cause


@pytest.mark.parametrize("count", [2, 3])
def test_an_error_of_a_connection_that_broke_is_explained(
    directory: Path, count: int
) -> None:
    """The last one is killed; of three, process 0 hangs, as in a collective."""
    body = """
print("met")
if group.index == group.count - 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.3)
if group.index < group.count - 2:
    time.sleep(1000)
raise RuntimeError("UNAVAILABLE: connection reset by peer")
"""
    with started(body, count, directory) as processes:
        _, out = processes[count - 2].end()
    assert "RuntimeError: UNAVAILABLE: connection reset by peer" in out
    assert "The above exception was the direct cause" in out
    assert "PeerLostError" in out
    assert f"process {count - 1} of {count}: it was killed or lost" in out


def test_directories_that_are_not_shared_are_refused(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    body = "raise AssertionError"
    with started(body, 2, directory, [directory, other]) as processes:
        ends = [process.end() for process in processes]
    for status, out in ends:
        assert status == 1
        assert "NotSupportedError: The processes do not share the checkpoint" in out
        assert f"what process 0 wrote in {directory} on " in out
        assert f" is missing in {other} on " in out
    assert list(directory.iterdir()) == list(other.iterdir()) == []


def test_a_timeout_that_is_none_is_refused(directory: Path) -> None:
    told = {"RESILIENT_PEER_TIMEOUT": "soon"}
    with started("pass", 2, directory, **told) as processes:
        ends = [process.end() for process in processes]
    said = (
        "RESILIENT_PEER_TIMEOUT must be a number of seconds above 2.\nReceived: 'soon'"
    )
    assert any(said in out for _, out in ends)
    assert all(status == 1 for status, _ in ends)
