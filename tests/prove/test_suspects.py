"""Lines of a script that may do something else each time."""

import pytest

from resilient.prove.suspects import seeds, suspects

pytestmark = pytest.mark.once

SCRIPT = """
import time, random, os
import numpy as np
import helper

keras.utils.set_random_seed(0)
rng = np.random.default_rng()
fine = np.random.default_rng(7)
also_fine = np.random.default_rng(seed=7)
none = random.Random(None)
rate = 1e-3 / time.time()
loader = DataLoader(data, num_workers=2)
serial = DataLoader(data, num_workers=0)
if os.path.exists("weights.h5"):
    pass


def batches():
    yield 1


class Data:
    def __getitem__(self, index):
        return np.random.normal()
day = datetime.date.today()
seed = os.getpid()
"""


def found(tmp_path, script, **others):
    for name, text in others.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "train.py").write_text(script)
    return suspects(["python", str(tmp_path / "train.py"), "--epochs", "3"])


def test_each_kind_is_found_with_its_line(tmp_path):
    expected = {
        ("unseeded", 7, "np.random.default_rng()"),
        ("unseeded", 10, "random.Random(None)"),
        ("time", 11, "time.time()"),
        ("workers", 12, "DataLoader(data, num_workers=2)"),
        ("files", 14, "os.path.exists('weights.h5')"),
        ("date", 25, "datetime.date.today()"),
        ("attempts", 26, "os.getpid()"),
        ("generator", 18, "def batches (a generator)"),
        ("workers", 24, "np.random.normal() in __getitem__"),
    }
    told = found(tmp_path, SCRIPT)
    assert {(each.kind, each.line, each.what) for each in told} == expected
    assert str(min(told, key=lambda x: x.line)) == "train.py:7: np.random.default_rng()"


def test_modules_beside_the_script_are_read_too(tmp_path):
    told = found(tmp_path, SCRIPT, helper="import uuid\nname = uuid.uuid4()\n")
    assert "helper.py:2: uuid.uuid4()" in [str(each) for each in told]


@pytest.mark.parametrize(
    "script", ["def (", "\0", "\udcff".encode(errors="replace").decode()]
)
def test_what_is_no_python_has_none(tmp_path, script):
    assert found(tmp_path, script) == []


def test_a_command_without_a_script_has_none():
    assert suspects(["python", "-m", "trainer"]) == []
    assert suspects(["./missing.py"]) == []
    assert seeds(["python", "-m", "trainer"])


def test_a_module_that_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "go.py").write_text("import uuid\nuuid.uuid4()")
    (tmp_path / "trainer" / "__main__.py").write_text("uuid.uuid1()")
    told = suspects(["python", "-m", "resilient", "run", "--", "-m", "trainer.go"])
    assert [str(each) for each in told] == ["go.py:2: uuid.uuid4()"]
    told = suspects(["python", "-m", "trainer"])
    assert [str(each) for each in told] == ["__main__.py:1: uuid.uuid1()"]
    assert not seeds(["python", "-m", "trainer"])


def test_a_seed_that_an_imported_module_sets(tmp_path):
    (tmp_path / "base.py").write_text("keras.utils.set_random_seed(0)")
    script = tmp_path / "train.py"
    script.write_text("from base import *\nmodel = build()")
    assert seeds([str(script)])


def test_whether_a_script_sets_the_seed(tmp_path):
    script = tmp_path / "train.py"
    for text, expected in (
        ("model = build()", False),
        ("keras.utils.set_random_seed(1)", True),
        ("resilient.deterministic(seed=1)", True),
    ):
        script.write_text(text)
        assert seeds([str(script)]) is expected
