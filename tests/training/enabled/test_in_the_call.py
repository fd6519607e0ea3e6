"""``BackupAndRestore`` takes control when it is made, wherever a program makes it."""

import copy
import doctest
import pickle
import signal
from pathlib import Path

import keras
import numpy as np
import pytest
from support import fitting
from support.gang import run_alone

import resilient
from resilient import NotExactWarning

PROGRAM = Path(__file__).with_name("in_the_call.py")

# Keras on NumPy 2 (keras.Variable.__array__).
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")


def attempt(*arguments, status=0):
    ended, printed = run_alone(PROGRAM, *arguments, timeout=250)
    assert ended == status, printed[-3000:]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What a form leaves without the callback."""
    out = tmp_path_factory.mktemp("plain")

    def trained(form):
        file = out / f"{form}.npz"
        if not file.exists():
            attempt(form, file, 0)
        return np.load(file)

    return trained


# After how many batches each is killed: of 12, or in the second of two fits.
OF_ONE = {
    "overridden": 8,
    "looked_up_before": 8,
    "by_partial": 8,
    "in_a_callback_list": 8,
    "wrapped_by_another_library": 8,
    "twice": 20,
}
OTHERS = OF_ONE.keys() - {"wrapped_by_another_library"}
LONG = [pytest.mark.long]


@pytest.mark.xdist_group("in the call")
@pytest.mark.parametrize(
    ("form", "kill"),
    [
        ("in_the_call", 8),
        *(
            pytest.param(*each, marks=[pytest.mark.spread, *LONG * (each[0] in OTHERS)])
            for each in OF_ONE.items()
        ),
    ],
)
def test_a_fit_is_exact_in_whatever_form_its_callback_is_made(
    tmp_path, plain, form, kill
):
    expected = plain(form if form == "twice" else "in_the_call")
    backup = tmp_path / "backup"
    attempt(form, tmp_path / "out.npz", kill, backup, status=-signal.SIGKILL)
    attempt(form, tmp_path / "out.npz", 0, backup)
    out = np.load(tmp_path / "out.npz")
    assert out["batches"] < expected["batches"]
    for name in set(expected.files) - {"batches"}:
        np.testing.assert_array_equal(out[name], expected[name])


def copied(callback):
    return pickle.loads(pickle.dumps(callback))


@pytest.mark.spread
@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("how", [copy.deepcopy, copied])
def test_a_copy_is_in_control_when_the_original_is_gone(tmp_path, how):
    backup = how(resilient.BackupAndRestore(tmp_path, delete_checkpoint=False))
    fitting.model().fit(**fitting.arguments(epochs=1, callbacks=[backup]))
    assert fitting.steps(tmp_path) == [fitting.STEPS]


def test_the_example_of_keras_word_for_word(tmp_path):
    text = keras.callbacks.BackupAndRestore.__doc__
    for theirs, ours in {
        "keras.callbacks.BackupAndRestore": "resilient.BackupAndRestore",
        "/tmp/backup": str(tmp_path / "backup"),
    }.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    names = {"keras": keras, "np": np, "resilient": resilient}
    examples = doctest.DocTestParser().get_examples(text)
    program = "".join(example.source for example in examples)
    gone = "Callback was removed; it had no state"
    with pytest.warns(NotExactWarning, match=gone) as found:
        exec(program, names)
    assert len([each for each in found if "removed" in str(each.message)]) == 1
    assert names["history"].epoch == [*range(10)]  # of the whole run, as of `fit` here
    assert len(names["history"].history["loss"]) == 10
    assert not list(tmp_path.iterdir())
    names.clear()  # its classes are remembered, and with them their module
