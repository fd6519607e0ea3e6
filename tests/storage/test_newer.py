"""What a later version wrote is no damage: an error names it, and it stays."""

import json
import os

import pytest
from support.checkpoint_samples import filled, newest_good, steps, verified
from support.newer import VERSION, make_newer

from resilient import NotSupportedError
from resilient.cli.main import main
from resilient.storage.quarantine import entries

pytestmark = pytest.mark.once

OK, FAILED = 0, 5
NAME = "step-00000040"


@pytest.fixture
def store(tmp_path):
    store = filled(tmp_path, 10, 25, 40)
    make_newer(tmp_path / NAME)
    return store


@pytest.fixture(autouse=True)
def nothing_is_changed(store):
    before = sorted(os.walk(store.directory))
    yield
    assert sorted(os.walk(store.directory)) == before
    assert entries(store.directory) == {}


def test_it_is_not_passed_over(store):
    for use in (newest_good, lambda store: verified(store, 40)):
        with pytest.raises(NotSupportedError, match=VERSION):
            use(store)


def test_the_others_are_there(store):
    assert steps(store) == [10, 25]
    assert verified(store, 25).step == 25


def test_ls_lists_the_others_and_names_the_version(store, capsys):
    assert main(["ls", str(store.directory)]) == FAILED
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["step", "10", "25", "unreadable:"]
    assert NAME in lines[-1]
    assert VERSION in lines[-1]
    assert main(["ls", str(store.directory), "--json"]) == FAILED
    data = json.loads(capsys.readouterr().out)
    assert [each["step"] for each in data["checkpoints"]] == [10, 25]
    (newer,) = data["unusable"]
    assert (newer["step"], newer["verdict"]) == (40, "unreadable")
    assert VERSION in newer["problems"][0]


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_where_there_is_nothing_else(tmp_path_factory, capsys, command):
    store = filled(tmp_path_factory.mktemp("alone"), 40)
    make_newer(store.directory / NAME)
    assert main([command, str(store.directory)]) == FAILED
    assert VERSION in capsys.readouterr().out


def test_show_names_the_version(store, capsys):
    for path in (store.directory, store.directory / NAME):
        assert main(["show", str(path)]) == FAILED
        assert VERSION in capsys.readouterr().err
    assert main(["show", str(store.directory / "step-00000025")]) == OK


def test_verify_reads_the_others_and_names_the_version(store, capsys):
    assert main(["verify", str(store.directory)]) == FAILED
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["step-00000010: good", "step-00000025: good"]
    assert lines[2] == f"{NAME}: unreadable"
    assert VERSION in lines[3]


def test_prune_leaves_it_alone(store, capsys):
    assert main(["prune", str(store.directory), "--keep", "1", "--dry-run"]) == OK
    assert "delete: 10 " in capsys.readouterr().out
