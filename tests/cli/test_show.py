"""What ``resilient show`` tells of a checkpoint, and how one may be named."""

import dataclasses
import json
import shutil

import pytest
from another_backend import CHECKPOINTS
from another_backend import FIT as STEP
from support.checkpoint_samples import filled, save_run, steps

from resilient.cli.arguments import checkpoint_location
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
    facts = [
        "trainable parameters: 183",
        "model: Sequential",
        "optimizer: Adam",
        "data kind: arrays",
        "data samples: 22",
        "data shuffle: True",
        "data x: (22, 6, 6, 1) float32",
        "data y: (22) int64",
        "learning rate: 0.001 (set by the script)",
        "callbacks: ReduceLROnPlateau, EarlyStopping, Watch, History",
        "variable shape dtype",
        "sequential/batch_normalization/gamma (3) float32",
        "sequential/dense/kernel (48, 3) float32",
    ]
    assert [line for line in told if line in facts] == facts
    assert not any("xxh3" in line or "run.json" in line for line in lines)


def test_a_fit_as_json(capsys):
    code, data = run_json(capsys, "show", TORCH)
    assert code == OK
    assert data["run"] == json.loads((TORCH / STEP / "run.json").read_text())


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_backend_does_not_matter(capsys, backend, kind):
    code, theirs = run_json(capsys, "show", CHECKPOINTS / backend / PLACES[kind])
    assert (code, theirs["run"]["kind"]) == (OK, kind)
    assert backend in theirs["environment"]
    shapes, ours = (
        [v["shape"] for v in told["run"]["variables"] if v["dtype"] == "float32"]
        for told in (theirs, run_json(capsys, "show", TORCH / PLACES[kind])[1])
    )
    assert shapes == ours


def test_a_loop_and_variables_alone(tmp_path, capsys):
    code, lines, _ = run(capsys, "show", TORCH / "loop")
    assert code == OK
    assert "sequential_2/dense_2/kernel (48, 3) float32" in lines
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
    code, _, err = run(capsys, "show", tmp_path / "fit")
    assert code == DAMAGED
    assert "run.json does not match its checksum" in err
    path.unlink()
    code, _, err = run(capsys, "show", tmp_path / "fit")
    assert code == DAMAGED
    assert "run.json is missing" in err


def test_the_directory_of_a_checkpoint_names_it(tmp_path, capsys, monkeypatch):
    store = filled(tmp_path, 10, 1800, 1900)
    named = tmp_path / "step-00001800"
    code, lines, _ = run(capsys, "show", f"{named}/")
    assert (code, lines[0]) == (OK, str(named))
    code, lines, _ = run(capsys, "verify", named)
    assert (code, lines[0], len(lines)) == (OK, "step-00001800: good", 1)
    monkeypatch.chdir(tmp_path)
    code, lines, _ = run(capsys, "show", "step-00001800")
    assert (code, lines[0]) == (OK, str(named))
    for command in ("show", "verify"):
        code, _, err = run(capsys, command, tmp_path / "step-00000020")
        assert code == NOTHING
        assert "10, 1800, 1900" in err
    for command in (["ls"], ["report"], ["prune", "--keep", 1]):
        code, _, err = run(capsys, command[0], named, *command[1:])
        assert code == NOTHING
        assert "Name the checkpoint_dir of a run" in err
    assert steps(store) == [10, 1800, 1900]


@pytest.mark.parametrize("end", ["", "/"])
def test_a_checkpoint_in_an_object_store_is_named_by_its_address(end):
    named = checkpoint_location(f"s3://bucket/run/step-00001800{end}")
    assert named == ("s3://bucket/run", 1800)
    assert checkpoint_location(f"s3://bucket/run{end}").step is None
