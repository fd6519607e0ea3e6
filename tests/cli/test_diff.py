"""What ``resilient diff`` tells of two checkpoints."""

import json
import shutil

import numpy as np
import pytest
from another_backend import CHECKPOINTS, lose, need
from another_backend import FIT as STEP
from support import manifests
from support.checkpoint_samples import filled

from resilient.cli.main import main

pytestmark = pytest.mark.once

SAME, DIFFERENT, USAGE, NOTHING, _, FAILED = range(6)
DAMAGED = 1
TORCH = CHECKPOINTS / "torch"


def run(capsys, *arguments):
    """Exit code and lines of a command, with single spaces; and its errors."""
    code = main(["diff", *map(str, arguments)])
    output = capsys.readouterr()
    return code, [" ".join(x.split()) for x in output.out.splitlines()], output.err


def run_json(capsys, *arguments):
    code = main(["diff", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


@pytest.fixture
def pair(tmp_path):
    """A fit, twice."""
    need("torch")
    for name in "ab":
        shutil.copytree(TORCH / STEP, tmp_path / name / STEP)
    return tmp_path / "a", tmp_path / "b"


def rewrite(directory, act):
    """Let `act` change what the run.json of a checkpoint says."""
    saved = json.loads((directory / STEP / "run.json").read_text())
    act(saved)
    manifests.replace(directory / STEP, "run.json", json.dumps(saved).encode())


def set_tensor(directory, name, change):
    """Change a tensor of a checkpoint."""
    from resilient import backends

    path = directory / STEP / "variables" / "state.pt"
    raw = path.read_bytes()
    before = backends.read("torch", str(path.parent))[name]
    after = before.copy()
    change(after)
    assert raw.count(before.tobytes()) == 1
    raw = raw.replace(before.tobytes(), after.tobytes())
    manifests.replace(directory / STEP, "variables/state.pt", raw)


def test_equal(pair, capsys):
    code, lines, err = run(capsys, *pair)
    assert (code, err) == (SAME, "")
    assert lines == [
        f"A: {pair[0]}/{STEP} (end of epoch 1, torch)",
        f"B: {pair[1]}/{STEP} (end of epoch 1, torch)",
        "equal: the same state, byte for byte (29 tensors)",
    ]
    code, data = run_json(capsys, *(directory / STEP for directory in pair))
    assert (code, data["equal"], data["differences"]) == (SAME, True, [])
    assert (data["tensors"], data["a"]["step"], data["b"]["backend"]) == (
        29,
        6,
        "torch",
    )


def test_the_largest_difference_comes_first(pair, capsys):
    def next_up(array):
        array[0] = np.nextafter(array[0], np.float32(np.inf))

    def shift(array):
        array += 2

    set_tensor(pair[1], "trainable.0005.sequential.dense.bias", next_up)
    set_tensor(pair[1], "trainable.0004.sequential.dense.kernel", shift)
    code, lines, _ = run(capsys, *pair)
    assert code == DIFFERENT
    assert lines[2] == "different: 2 in trainable"
    assert lines[3] == "part leaf difference"
    assert lines[4] == "trainable sequential/dense/kernel 144 of 144, by up to 2"
    assert lines[5].startswith("trainable sequential/dense/bias 1 of 3, by up to ")
    code, data = run_json(capsys, *pair)
    _, bias = data["differences"]
    assert 0 < bias.pop("largest") < 1e-6
    assert bias == {
        "section": "trainable",
        "name": "sequential/dense/bias",
        "a": "(3) float32",
        "b": "(3) float32",
        "count": 1,
        "size": 3,
        "counts": True,
    }


def test_bits_that_no_number_tells(pair, capsys):
    def first(value):
        def change(array):
            array[0] = value

        return change

    name = "trainable.0005.sequential.dense.bias"
    set_tensor(pair[0], name, first(0.0))
    set_tensor(pair[1], name, first(-0.0))
    code, lines, _ = run(capsys, *pair)
    assert code == DIFFERENT
    assert lines[4] == "trainable sequential/dense/bias 1 of 3, by up to 0"
    set_tensor(pair[1], name, first(np.nan))
    code, lines, _ = run(capsys, *pair)
    assert code == DIFFERENT
    assert lines[4] == "trainable sequential/dense/bias 1 of 3, by up to nan"
    code, data = run_json(capsys, *pair)
    assert (code, data["differences"][0]["largest"]) == (DIFFERENT, "nan")


def test_what_is_no_tensor(pair, capsys):
    def change(saved):
        history = saved["callbacks"][-1]["objects"]
        (loss,) = (x for home, x in history.items() if home.endswith("['loss']+"))
        loss["items"][0] = 2.5
        saved["random"]["python"][2] = 0.5
        saved["stop_training"] = True
        saved["callbacks"][2]["state_dict"]["v"][0][1][5][1] = 3
        saved["fingerprint"]["settings"]["loss"] = "mae"

    rewrite(pair[1], change)
    code, lines, _ = run(capsys, *pair)
    assert code == DIFFERENT
    assert lines[2:] == [
        "different: 1 in progress, 1 in random, 1 in callbacks, 1 in history",
        "part leaf difference",
        "progress stop_training False -> True",
        "random python[2] None -> 0.5",
        "callbacks Watch.state_dict.batches[5][1] 2 -> 3",
        "history loss[0] 1.3869762420654297 -> 2.5",
        "Not part of the state, and different:",
        "part leaf difference",
        "settings loss sparse_categorical_crossentropy -> mae",
    ]
    _, data = run_json(capsys, *pair)
    assert data["differences"][-1] == {
        "section": "history",
        "name": "loss[0]",
        "a": "1.3869762420654297",
        "b": "2.5",
        "count": None,
        "size": None,
        "largest": None,
        "counts": True,
    }


def test_names_that_are_no_text_and_long_numbers(pair, capsys):
    for directory, number in zip(pair, (1, 2), strict=True):

        def change(saved, number=number):
            history = saved["callbacks"][-1]["objects"]
            (logged,) = (x for home, x in history.items() if home.endswith(".history"))
            logged["items"]["v"].append([7, [float(number)]])
            long = {"!": "int", "v": hex(number << 20_000)}
            saved["stateful"]["budget"] = {"!": "dict", "v": [["n", long]]}

        rewrite(directory, change)
    code, lines, _ = run(capsys, *pair)
    assert code == DIFFERENT
    assert lines[2] == "different: 1 in history, 1 in objects"
    assert "history history[7][0] 1.0 -> 2.0" in lines
    assert any(x.startswith("objects budget.n 0x1000000000") for x in lines)


def test_settings_and_versions_alone_are_no_difference(pair, capsys):
    def change(saved):
        saved["fingerprint"]["settings"]["jit_compile"] = True

    rewrite(pair[1], change)
    manifests.change(
        pair[1] / STEP, lambda said: said["environment"].update(keras="3.16.0")
    )
    code, lines, _ = run(capsys, *pair)
    assert code == SAME
    assert lines[2:] == [
        "equal: the same state, byte for byte (29 tensors)",
        "Not part of the state, and different:",
        "part leaf difference",
        "settings jit_compile False -> True",
        "environment keras 3.15.1 -> 3.16.0",
    ]


def test_clocks_are_no_difference(pair, capsys):
    for number, directory in enumerate(pair):

        def change(saved, number=number):
            ago = {"!": "dict", "v": [["_start", number]]}
            bar = {"!": "dict", "v": [["ago", ago], ["seen", 3]]}
            saved["callbacks"][0]["special"] = bar

        rewrite(directory, change)
    code, lines, _ = run(capsys, *pair)
    assert (code, lines[-1]) == (SAME, "clocks ReduceLROnPlateau.ago._start 0 -> 1")


def test_many_differences_are_not_all_told(pair, capsys):
    def change(saved):
        counts = [[str(n), n] for n in range(300)]
        saved["stateful"]["budget"] = {"!": "dict", "v": counts}

    rewrite(pair[0], change)
    rewrite(pair[1], lambda saved: change(saved) or _add_one(saved))
    code, lines, _ = run(capsys, *pair)
    assert code == DIFFERENT
    assert lines[-1] == "and 280 more, which --json lists"
    _, data = run_json(capsys, *pair)
    assert len(data["differences"]) == 300
    assert data["differences"][-1]["name"] == "budget.299"


def _add_one(saved):
    for item in saved["stateful"]["budget"]["v"]:
        item[1] += 1


def test_names_that_no_terminal_obeys(pair, capsys):
    odd = "\x1b[31m\x9b31m\r\nforged\u202e[red]x"

    def change(saved):
        saved["variables"][0]["path"] = odd
        saved["callbacks"][0]["class"] = f"a.{odd}"
        saved["stateful"] = {odd: odd}

    rewrite(pair[1], change)
    set_tensor(pair[1], "trainable.0002.sequential.batch_normalization.gamma", _zero)
    for as_json in ([], ["--json"]):
        code = main(["diff", *map(str, pair), *as_json])
        text = capsys.readouterr().out
        assert code == DIFFERENT
        assert not set(text) & set("\x1b\x9b\r\u202e")
        assert "\nforged" not in text


def _zero(array):
    array[:] = 0


def test_two_backends(capsys):
    need("torch", "jax")
    code, lines, _ = run(capsys, TORCH / STEP, CHECKPOINTS / "jax" / STEP)
    assert code == DIFFERENT
    assert any(line.startswith("trainable sequential/dense/kernel ") for line in lines)
    assert "random backends dict of tensorflow, torch -> " in " ".join(lines)


@pytest.mark.parametrize("saver", ["torch", "tensorflow", "jax"])
def test_the_library_of_a_backend_is_needed(monkeypatch, capsys, saver):
    """But for what does not read its tensors."""
    lose(monkeypatch, saver)
    saved = CHECKPOINTS / saver
    code, lines, err = run(capsys, saved, saved)
    assert (code, lines) == (FAILED, [])
    assert f'pip install "keras-resilient[{saver}]"' in err
    for command in ("ls", "show", "verify"):
        assert main([command, str(saved)]) == SAME


def test_another_kind_of_run(capsys):
    need("torch")
    code, data = run_json(capsys, TORCH, TORCH / "loop")
    assert code == DIFFERENT
    sides = {(x["section"], x["name"]): (x["a"], x["b"]) for x in data["differences"]}
    bias = "trainable.net", "sequential_2/conv2d_2/bias"
    assert sides[bias] == (None, "(3) float32")
    assert sides["settings", "kind"] == ("fit", "loop")


def test_wrong_usage_and_nothing_there(pair, tmp_path, capsys):
    code, _, err = run(capsys, pair[0], tmp_path / "gone")
    assert code == NOTHING
    assert "There is no checkpoint in" in err
    (tmp_path / "empty").mkdir()
    for directories in (
        (pair[0], tmp_path / "empty"),
        (tmp_path / "empty", pair[0]),
        (pair[0], pair[1] / "step-00000010"),
    ):
        code, _, err = run(capsys, *directories)
        assert code == NOTHING
        assert "There is no checkpoint" in err
    with pytest.raises(SystemExit) as ended:
        run(capsys, pair[0])
    assert ended.value.code == USAGE
    with pytest.raises(SystemExit) as ended:
        run(capsys, pair[0], "s3://")
    assert ended.value.code == USAGE


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", ["run.json", "variables/state.pt", "manifest.json"])
def test_damage(pair, capsys, which, name):
    path = pair[which] / STEP / name
    path.write_bytes(path.read_bytes()[:-3] + b"abc")
    code, lines, err = run(capsys, *pair)
    assert (code, lines) == (DAMAGED, [])
    assert f"{pair[which]}/{STEP}" in err
    code, data = run_json(capsys, *pair)
    assert (code, data["error"]) == (DAMAGED, "CorruptCheckpointError")


def test_what_this_version_does_not_know(tmp_path, pair, capsys):
    filled(tmp_path / "sample", 9)
    code, _, err = run(capsys, pair[0], tmp_path / "sample")
    assert code == FAILED
    assert "which backend saved it" in err
