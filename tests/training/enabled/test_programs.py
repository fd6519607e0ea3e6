"""A program of many fits is killed and run again, with the command or the callback."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.gang import run_alone

HERE = Path(__file__).parent
PROGRAM, FOLDS = HERE / "program.py", HERE / "folds.py"
# Batches of one attempt: in the second call, and in the last of the sweep.
KILLS = "7,15"

# On one backend, since all of them share what the program leaves without us.
pytestmark = [pytest.mark.xdist_group("programs"), pytest.mark.spread]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What the program leaves without us."""
    out = tmp_path_factory.mktemp("plain") / "out.npz"
    attempt(out, "0")
    return np.load(out)


def attempt(*arguments, status=0):
    """Run the program, forked from a process that has imported what it imports."""
    ended, told = run_alone(PROGRAM, *arguments, timeout=250)
    assert ended == status, told[-3000:]


def assert_equal(left, plain):
    assert set(left.files) == set(plain.files)
    different = [n for n in plain.files if not np.array_equal(left[n], plain[n])]
    assert not different


def run_save(directory, environment, *program):
    """``resilient run --save`` a program."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "resilient", "run", "--save", directory),
            *("--save-freq", "3", "--backoff", "0.01", "--same-failure", "1", "--"),
            *(sys.executable, *program),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        stdin=subprocess.DEVNULL,
    )


def test_run_save_makes_a_program_resumable_that_knows_nothing_of_it(
    plain, child_environment, tmp_path
):
    out = tmp_path / "out.npz"
    done = run_save(tmp_path / "runs", child_environment, PROGRAM, out, KILLS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("it was killed by SIGKILL") == KILLS.count(",") + 1
    assert_equal(np.load(out), plain)
    names = sorted(path.name for path in (tmp_path / "runs").glob("*-*"))
    assert names == [
        *(f"00{i}-sequential" for i in range(1, 8)),
        *("008-noisy", "009-sequential"),
    ]


def test_a_call_that_a_program_does_not_make_again(child_environment, tmp_path):
    """It would never be resumed: an error, which no restart cures."""
    given = child_environment, HERE / "forgets.py", tmp_path / "begun.json"
    done = run_save(tmp_path / "runs", *given)
    assert done.returncode == 1, done.stderr[-3000:]
    assert done.stderr.count("it was killed by SIGKILL") == 1
    assert "did not call fit again where it had been" in done.stderr
    assert f"call 2, saved in {tmp_path / 'runs' / '002-sequential'}" in done.stderr
    assert "attempts: 2" in done.stderr.lower()
    done = run_save(tmp_path / "runs", *given)
    assert done.returncode == 1, done.stderr[-3000:]
    (tmp_path / "runs" / "fits.json").unlink()
    assert run_save(tmp_path / "runs", *given).returncode == 0


@pytest.mark.parametrize("how", ["pool", "scripts"])
def test_fits_in_several_processes_are_refused_at_once(
    child_environment, tmp_path, how
):
    program = HERE / "folds_in_processes.py"
    done = run_save(tmp_path / "runs", child_environment, program, how)
    assert done.returncode == 1, done.stderr[-3000:]
    assert "NotSupportedError: model.fit was called in several" in done.stderr
    assert "call resilient.fit, with a checkpoint_dir for each" in done.stderr
    assert "Another run" not in done.stderr
    assert len(list((tmp_path / "runs").glob("*-*"))) == (how == "scripts")


@pytest.mark.long  # `nox -s exact` kills fits with the callback
def test_backup_and_restore_is_exact(plain, tmp_path):
    out = tmp_path / "out.npz"
    arguments = (out, KILLS, "callback", tmp_path / "backups")
    for _ in KILLS.split(","):
        attempt(*arguments, status=-9)
    attempt(*arguments)
    assert_equal(np.load(out), plain)


@pytest.mark.parametrize(
    ("how", "file", "kills"),
    [
        ("enabled", "best.keras", "batch:20,whole:1,fit:3"),
        pytest.param(
            *("callback", "best.weights.h5", "batch:20,begun:1,fit:3"),
            marks=pytest.mark.long,
        ),
    ],
    ids=["enabled", "callback"],
)
def test_folds_that_write_to_one_file_each_find_their_own(tmp_path, how, file, kills):
    """Killed in the second, while the first puts its file back, and after the third."""
    alone = scores(tmp_path / "alone", file, "none:0")
    assert len(set(alone)) == 4
    place = tmp_path / "killed"
    arguments = (place / file, kills, how, tmp_path / "saved")
    for _ in kills.split(","):
        status, told = run_alone(FOLDS, place / "out.json", *arguments)
        assert status == -signal.SIGKILL, told[-3000:]
    assert scores(place, file, kills, how, tmp_path / "saved") == alone
    assert not list(place.glob(".best.*"))


def scores(place, file, *arguments):
    """What the folds leave, run to the end."""
    out = place / "out.json"
    status, told = run_alone(FOLDS, out, place / file, *arguments)
    assert status == 0, told[-3000:]
    return json.loads(out.read_text())


INLINE = """
import sys
import keras, numpy as np
{imported}

x = np.ones((8, 2), "float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], verbose=0, callbacks=[{made}(sys.argv[1])])
"""


@pytest.mark.parametrize(
    ("imported", "made"),
    [
        ("from resilient import BackupAndRestore", "BackupAndRestore"),
        ("import resilient", "resilient.BackupAndRestore"),
    ],
)
def test_a_callback_that_is_made_in_the_call(tmp_path, imported, made):
    """``model.fit`` was looked up before it."""
    script = tmp_path / "script.py"
    script.write_text(INLINE.format(imported=imported, made=made))
    status, told = run_alone(script, tmp_path / "backup")
    assert status == 0, told
