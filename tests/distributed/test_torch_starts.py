"""Ranks that torchrun starts again see nothing that those before left in its store."""

import keras
import pytest

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="torchrun starts torch"
)


@pytest.fixture
def start(monkeypatch):
    """Makes what a rank of torchrun connects with, at its n-th start."""
    from torch.distributed import TCPStore

    from resilient.distributed.strategies.torch import _of_this_start

    kept = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    variables = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(kept.port),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def start(restarts: int, machines: int = 1):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        monkeypatch.setenv("GROUP_WORLD_SIZE", str(machines))
        return _of_this_start()

    yield start
    del kept


def test_each_start_on_one_machine_has_a_part_of_the_store(start):
    first, second = start(0), start(1)
    assert (second["rank"], second["world_size"]) == (0, 1)
    first["store"].set("address", "gone")
    assert not second["store"].check(["address"])
    assert start(0)["store"].get("address") == b"gone"


def test_several_machines_count_their_starts_apart_and_share_the_store(start):
    assert start(1, machines=2) == {}


def test_what_started_no_store_of_torchrun_is_left_to_torch(start, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    assert start(1) == {}
