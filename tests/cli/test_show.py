"""What ``resilient show`` tells of a checkpoint, and how one may be named."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from another_backend import CHECKPOINTS
from another_backend import FIT as STEP
from support.checkpoint_samples import filled, save_run, steps

from resilient.cli.main import main
from resilient.saving.run_json import VariablesRun

pytestmark = pytest.mark.once

OK, DAMAGED, USAGE, NOTHING, _, FAILED = range(6)
TORCH = CHECKPOINTS / "torch"
PLACES = {"fit": ".", "loop": "loop"}


def run(capsys, *arguments):
    """Exit code and lines of a command, with single spaces; and its errors."""
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return (
        code,
        [" ".join(line.split()) for line in output.out.splitlines()],
        output.err,
    )


def run_json(capsys, *arguments):
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_a_fit(capsys):
    code, lines, err = run(capsys, "show", TORCH)
    assert (code, err) == (OK, "")
    assert "step 6 (end of epoch 1), finished" in lines
    told = lines[lines.index("torch: 2.13.0+cpu") + 1 :]
    arrays = "x (22, 6, 6, 1) float32, y (22) int64"
    assert told[:6] == [
        "model: Sequential, 183 trainable parameters",
        "optimizer: Adam, 14 variables, 1.47 kB",
        "learning rate: 0.001 (set by the script)",
        f"data: arrays, samples 22, batch_size 4, shuffle yes, {arrays}",
        "data position: end of epoch 1",
        "callbacks: ReduceLROnPlateau, EarlyStopping, Watch, History",
    ]
    table = told[told.index("layer variable shape dtype size") + 1 :]
    normalization = table.index("sequential/batch_normalization gamma (3) float32 12 B")
    assert table[normalization + 1 : normalization + 5] == [
        "beta (3) float32 12 B",
        "moving_mean (3) float32 12 B",
        "moving_variance (3) float32 12 B",
        "sequential/dense kernel (48, 3) float32 576 B",
    ]
    assert not any("xxh3" in line or "run.json" in line for line in lines)


def test_a_fit_as_json(capsys):
    code, data = run_json(capsys, "show", TORCH)
    assert (code, data["run_problem"]) == (OK, None)
    found = data["run"]
    assert (found["kind"], found["model"]) == ("fit", "Sequential")
    assert found["optimizer"] == ["Adam"]
    assert found["learning_rates"] == {"learning rate": float(np.float32(0.001))}
    assert found["batches_per_epoch"] == 6
    assert found["data"]["x"]["shape"] == [22, 6, 6, 1]
    kernel = next(
        v for v in found["variables"] if v["path"] == "sequential/dense/kernel"
    )
    assert kernel == {
        "group": "trainable",
        "name": "trainable.0004.sequential.dense.kernel",
        "path": "sequential/dense/kernel",
        "shape": [48, 3],
        "dtype": "float32",
        "nbytes": 576,
    }


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_backend_does_not_matter(capsys, backend, kind):
    code, theirs = run_json(capsys, "show", CHECKPOINTS / backend / PLACES[kind])
    assert (code, theirs["run"]["kind"]) == (OK, kind)
    assert backend in theirs["environment"]
    sizes, ours = (
        [v["nbytes"] for v in told["run"]["variables"] if v["dtype"] == "float32"]
        for told in (theirs, run_json(capsys, "show", TORCH / PLACES[kind])[1])
    )
    assert sizes == ours


@pytest.mark.parametrize(
    ("optimizer", "rates", "told"),
    [
        (
            ["Adam"],
            {"!": "dict", "v": []},
            ["learning rate: a schedule (set by the script)"],
        ),
        ([], {"!": "dict", "v": []}, []),
    ],
)
def test_a_learning_rate_that_is_no_number(tmp_path, capsys, optimizer, rates, told):
    saved = json.loads((TORCH / STEP / "run.json").read_text())
    saved["fingerprint"]["identity"]["optimizer"] = optimizer
    save_run(filled(tmp_path), saved | {"learning_rates": rates})
    _, lines, _ = run(capsys, "show", tmp_path)
    assert [line for line in lines if line.startswith("learning rate")] == told
    (of,) = [line for line in lines if line.startswith("optimizer")] or [""]
    assert " of ".join(optimizer) in of


def test_a_loop_and_variables_alone(tmp_path, capsys):
    code, lines, _ = run(capsys, "show", TORCH / "loop")
    assert code == OK
    assert "sequential_2/dense_2 kernel (48, 3) float32 576 B" in lines
    (objects,) = (line for line in lines if line.startswith("objects: "))
    assert "net (Keras layer), seeds (Keras seed generator)" in objects
    saved = json.loads((TORCH / "loop" / "step-00000003" / "run.json").read_text())
    names = {each.name for each in dataclasses.fields(VariablesRun)}
    alone = {key: saved[key] for key in names & set(saved)}
    save_run(filled(tmp_path), {"kind": "variables"} | alone)
    code, data = run_json(capsys, "show", tmp_path)
    assert (code, data["run"]["kind"]) == (OK, "variables")


def test_a_file_that_is_not_what_was_written_is_damage(tmp_path, capsys):
    shutil.copytree(TORCH / STEP, tmp_path / "fit" / STEP)
    path = tmp_path / "fit" / STEP / "run.json"
    path.write_text(path.read_text().replace("Sequential", "Consequent"))
    code, lines, _ = run(capsys, "show", tmp_path / "fit")
    assert code == DAMAGED
    assert lines[-1] == (
        "Its contents cannot be shown: run.json does not match its checksum"
    )
    path.unlink()
    code, data = run_json(capsys, "show", tmp_path / "fit")
    assert (code, data["run"]) == (DAMAGED, None)
    assert "run.json" in data["run_problem"]


def test_a_file_that_this_version_does_not_know_hides_nothing_else(tmp_path, capsys):
    filled(tmp_path, 10)
    code, lines, _ = run(capsys, "show", tmp_path)
    assert code == OK
    assert "keras: 3.15.1" in lines
    assert lines[-1].startswith("Its contents cannot be shown: run.json does not match")


@pytest.mark.parametrize("step", ["1800", "1,800", "1_800", "step-00001800"])
def test_a_step_as_people_write_it(tmp_path, capsys, step):
    filled(tmp_path, 10, 1800, 1900)
    code, lines, _ = run(capsys, "show", tmp_path, step)
    assert (code, lines[1].split(" (")[0]) == (OK, "step 1,800")


def test_the_directory_of_a_checkpoint_names_it(tmp_path, capsys, monkeypatch):
    store = filled(tmp_path, 10, 1800, 1900)
    named = tmp_path / "step-00001800"
    code, lines, _ = run(capsys, "show", f"{named}/")
    assert (code, lines[0]) == (OK, str(named))
    code, lines, _ = run(capsys, "verify", named)
    assert (code, lines[0], len(lines)) == (OK, "step-00001800: good", 1)
    monkeypatch.chdir(tmp_path)
    assert (
        run(capsys, "show", "step-00001800", 1800)[:2] == run(capsys, "show", named)[:2]
    )
    code, _, err = run(capsys, "show", named, 10)
    assert code == USAGE
    assert "Two different steps" in err
    for command in ("show", "verify"):
        code, _, err = run(capsys, command, tmp_path / "step-00000020")
        assert code == NOTHING
        assert "10, 1800, 1900" in err
    for command in (["ls"], ["report"], ["prune", "--keep", 1]):
        code, _, err = run(capsys, command[0], named, *command[1:])
        assert code == NOTHING
        assert err.endswith(f"Name the directory of the run: {tmp_path}\n")
    assert steps(store) == [10, 1800, 1900]


def test_a_run_may_have_the_name_of_a_checkpoint(tmp_path, capsys):
    filled(tmp_path / "step-00000001", 10)
    code, lines, _ = run(capsys, "show", tmp_path / "step-00000001")
    assert (code, lines[1].split(" (")[0]) == (OK, "step 10")
