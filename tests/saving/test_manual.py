"""Checkpoints of variables: every byte comes back, or nothing is changed."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import resilient
from resilient.backends import get_backend
from resilient.backends.arrays import DTYPES
from resilient.storage.commit import Staging

BACKEND = keras.backend.backend()
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")


def make_variables(units: int = 3) -> list[keras.Variable]:
    """Those of a model with a seed generator, and of an optimizer."""
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(units, dtype="bfloat16"),
            keras.layers.Dropout(0.5),
            keras.layers.BatchNormalization(),
        ]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return [*model.variables, *optimizer.variables]


def values(variables: list[keras.Variable]) -> list[np.ndarray]:
    return [
        np.array(keras.ops.convert_to_numpy(variable.value)) for variable in variables
    ]


def same(these: list[np.ndarray], those: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(these, those, strict=True))


def test_another_process_s_variables_get_every_byte(tmp_path: Path) -> None:
    """Whatever Keras calls them there."""
    saved, live = make_variables(), make_variables()
    with resilient.Checkpoints(tmp_path / "run", saved) as checkpoints:
        assert checkpoints.save(7).step == 7
    assert not same(values(saved), values(live))
    with resilient.Checkpoints(tmp_path / "run", live) as checkpoints:
        assert checkpoints.restore() == 7
    assert same(values(saved), values(live))


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_a_variable_of_any_type_gets_every_byte(tmp_path: Path) -> None:
    """Some are held as another type: JAX has float64 as float32, PyTorch uint16."""
    types = sorted(DTYPES - ({"uint64"} if BACKEND == "torch" else set()))

    def of(value: int) -> list[keras.Variable]:
        array = np.full(2, value)
        return [keras.Variable(array, dtype=each, trainable=False) for each in types]

    def held(variables: list[keras.Variable]) -> list[np.ndarray]:
        named = {str(number): each for number, each in enumerate(variables)}
        return list(get_backend().snapshot(named).arrays.values())

    saved, live = of(1), of(0)
    with resilient.Checkpoints(tmp_path / "run", saved) as checkpoints:
        checkpoints.save(7)
    with resilient.Checkpoints(tmp_path / "run", live) as checkpoints:
        assert checkpoints.restore() == 7
    assert same(held(saved), held(live))


@pytest.mark.skipif(BACKEND != "torch", reason="elsewhere models cannot be cast")
def test_what_torch_cast_is_restored(tmp_path: Path) -> None:
    """Keras still calls the variables float32."""
    import torch

    def of() -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        return model.to(torch.bfloat16)

    saved, live = of(), of()
    with resilient.Checkpoints(tmp_path / "run", saved.variables) as checkpoints:
        checkpoints.save(7)
    with resilient.Checkpoints(tmp_path / "run", live.variables) as checkpoints:
        assert checkpoints.restore() == 7
    for one, other in zip(saved.variables, live.variables, strict=True):
        assert one.value.dtype == torch.bfloat16
        assert torch.equal(one.value, other.value)


def test_without_a_checkpoint_nothing_is_changed_and_the_step_is_0(
    tmp_path: Path,
) -> None:
    variables = make_variables()
    before = values(variables)
    with resilient.Checkpoints(tmp_path / "run", variables) as checkpoints:
        assert checkpoints.restore() == 0
    assert same(values(variables), before)


def test_a_variable_given_twice_is_saved_once(tmp_path: Path) -> None:
    """As those of a model and of one of its layers are."""
    (variable, *_) = make_variables()
    with resilient.Checkpoints(tmp_path / "run", [variable, variable]) as checkpoints:
        checkpoints.save(1)
    with resilient.Checkpoints(tmp_path / "run", [variable]) as checkpoints:
        assert checkpoints.restore() == 1


def test_older_checkpoints_are_pruned_and_a_damaged_one_is_passed_over(
    tmp_path: Path,
) -> None:
    """The newest intact one is restored."""
    variables = make_variables()
    with resilient.Checkpoints(tmp_path / "run", variables, keep=2) as checkpoints:
        for step in (1, 2, 3):
            newest = checkpoints.save(step)
        (newest.path / "run.json").write_text("{}")
        assert checkpoints.restore() == 2
        (tmp_path / "run" / "step-00000002" / "run.json").unlink()
        with pytest.raises(resilient.CorruptCheckpointError):
            checkpoints.restore()


def test_checkpoints_that_are_gone_are_not_taken_for_a_beginning(
    tmp_path: Path,
) -> None:
    """Nothing tells of them but what the run has recorded."""
    with resilient.Checkpoints(tmp_path / "run", make_variables()) as checkpoints:
        newest = checkpoints.save(1)
        shutil.rmtree(newest.path)
        for _ in range(2):
            with pytest.raises(resilient.CheckpointNotFoundError, match="has saved"):
                checkpoints.restore()


def test_a_file_that_is_deleted_while_it_is_staged_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is: what is left is no checkpoint."""
    variables, seal = make_variables(), Staging.seal
    deleted: list[Path | None] = []

    def one_less(staging: Staging, *args: Any) -> Any:
        files = sorted(path for path in staging.path.rglob("*") if path.is_file())
        if len(deleted) < len(files):
            files[len(deleted)].unlink()
            deleted.append(files[len(deleted)])
        else:
            deleted.append(None)
        return seal(staging, *args)

    with resilient.Checkpoints(tmp_path / "run", variables) as checkpoints:
        checkpoints.save(1)
        monkeypatch.setattr(Staging, "seal", one_less)
        while not deleted or deleted[-1] is not None:
            before = len(deleted)
            with contextlib.suppress(resilient.CheckpointWriteError):
                checkpoints.save(2)
            assert len(deleted) == before + 1
            assert checkpoints.restore() == (2 if deleted[-1] is None else 1)
    assert len(deleted) > 3


def test_variables_need_no_name_and_have_to_be_variables(tmp_path: Path) -> None:
    variables = make_variables()
    if keras.backend.backend() == "torch":
        variables = [torch_parameter(value) for value in (1.0, 2.0)]
    with resilient.Checkpoints(tmp_path / "run", variables) as checkpoints:
        checkpoints.save(1)
        assert checkpoints.restore() == 1
    others = [variables[0], np.zeros(3)]
    with (
        resilient.Checkpoints(tmp_path / "other", others) as checkpoints,
        pytest.raises(TypeError, match="ndarray at position 1"),
    ):
        checkpoints.save(1)


def torch_parameter(value: float) -> Any:
    import torch

    return torch.nn.Parameter(torch.tensor(value))


@pytest.mark.parametrize("step", [-1, 10**15, 1.5, True])
def test_what_is_no_number_of_steps_is_not_saved(tmp_path: Path, step: Any) -> None:
    """A checkpoint under such a name would never be found again."""
    with (
        resilient.Checkpoints(tmp_path / "run", make_variables()) as checkpoints,
        pytest.raises((TypeError, ValueError), match=r"save\(step\) must be"),
    ):
        checkpoints.save(step)


def test_other_variables_are_refused_and_not_changed(tmp_path: Path) -> None:
    """All or nothing, and the message names them."""
    with resilient.Checkpoints(tmp_path / "run", make_variables(3)) as checkpoints:
        checkpoints.save(1)
    others = make_variables(2)
    before = values(others)
    with (
        resilient.Checkpoints(tmp_path / "run", others) as checkpoints,
        pytest.raises(resilient.CheckpointMismatchError, match=r"dense.*/kernel"),
    ):
        checkpoints.restore()
    assert same(values(others), before)


def test_one_living_run_per_directory(tmp_path: Path) -> None:
    """And nobody saves who does not hold the lock."""
    first, second = (
        resilient.Checkpoints(tmp_path / "run", make_variables()) for _ in range(2)
    )
    with first, pytest.raises(resilient.DirectoryInUseError), second:
        pass
    with pytest.raises(resilient.ResilientError, match="outside a `with` block"):
        first.save(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of JAX
def test_a_forked_process_has_no_lock(tmp_path: Path) -> None:
    """It and its parent would save in turn, each pruning what the other needs."""
    with resilient.Checkpoints(tmp_path / "run", make_variables()) as checkpoints:
        if (child := os.fork()) == 0:
            try:
                checkpoints.save(1)
            except resilient.ResilientError as error:
                os._exit(
                    3 if "forked from inside the `with` block" in str(error) else 4
                )
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        checkpoints.save(2)


def test_fit_and_a_loop_refuse_each_other_s_checkpoints(tmp_path: Path) -> None:
    """Neither has what the other one needs."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.zeros((4, 4), "float32"), np.zeros((4, 1), "float32")
    variables = make_variables()
    with resilient.Checkpoints(tmp_path / "loop", variables) as checkpoints:
        checkpoints.save(1)
    with pytest.raises(resilient.CheckpointMismatchError, match=r"\.Checkpoints saved"):
        resilient.fit(model, x, y, verbose=0, checkpoint_dir=tmp_path / "loop")
    resilient.fit(model, x, y, verbose=0, checkpoint_dir=tmp_path / "fit")
    with (
        resilient.Checkpoints(tmp_path / "fit", variables) as checkpoints,
        pytest.raises(
            resilient.CheckpointMismatchError, match=r"what resilient\.fit saved"
        ),
    ):
        checkpoints.restore()
