"""A checkpoint as a file of Keras or safetensors: all of it, or an error."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import ml_dtypes
import numpy as np
import pytest
from support.fitting import (
    assert_equal,
    data,
    fit,
    interrupted,
    layers,
    model,
    random_state,
)
from support.gang import run_alone
from support.waited import each_save_waited_for

import resilient
from resilient import (
    BackendNotAvailableError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    NotExactWarning,
    NotSupportedError,
    backends,
)
from resilient.backends import get_backend
from resilient.cli.main import main
from resilient.convert.sources import Source
from resilient.convert.tensors import unique_names
from resilient.storage import scratch

# Keras reads a variable in a way that numpy 2.4 says will end.
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")

BACKEND = keras.backend.backend()
TENSORS = {
    "model/a b": np.arange(6, dtype="float32").reshape(2, 3),
    "scalar": np.asarray(7, "int64"),
    "none": np.zeros((0, 2), "float64"),
    "flags": np.asarray([True, False]),
    "seed": np.asarray([1, 2**32 - 1], "uint32"),
    "half": np.asarray([1.5, -2.5], ml_dtypes.bfloat16),
}


class Scale(keras.layers.Layer):
    """A layer that Keras knows how to make only if it is told."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.scale


class Forgetful(Scale):
    """A layer that does not save what it has."""

    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


class NoConfig(keras.Model):
    """A model that cannot be made again from a config."""

    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def call(self, x):
        return self.dense(x)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two checkpoints, the newest in mid-epoch, and the model it left."""
    directory = tmp_path_factory.mktemp("export") / "run"
    with each_save_waited_for():
        net = interrupted(directory, 1, 2, save_freq=3)
    resilient.ResilientFit(net, checkpoint_dir=directory).restore()
    return directory, net


def paths_and_arrays(path):
    """What another program reads."""
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def with_the_owners_tool(variables):
    """What the library of the backend reads in a checkpoint's ``variables/``."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        reader = tf.train.load_checkpoint(str(variables / "state"))
        names = reader.get_variable_to_shape_map()
        return {name: reader.get_tensor(name) for name in names}
    if BACKEND == "jax":
        import orbax.checkpoint

        return orbax.checkpoint.PyTreeCheckpointer().restore(variables / "state")
    import torch

    tensors = torch.load(variables / "state.pt", weights_only=True)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def same(expected, actual):
    expected, actual = np.asarray(expected), np.asarray(actual)
    return (expected.dtype, expected.shape, expected.tobytes()) == (
        *(actual.dtype, actual.shape, actual.tobytes()),
    )


def saved_variables(directory):
    """Name, path and array of each variable of the newest checkpoint."""
    newest = max(directory.glob("step-*"))
    tensors = backends.read(get_backend().name, str(newest / "variables"))
    listed = json.loads((newest / "run.json").read_text())["variables"]
    return {each["path"]: tensors[each["name"]] for each in listed}


def test_a_checkpoint_is_read_without_this_library(run):
    """Its tensors by the backend's own tool, their paths in the model by run.json."""
    directory, net = run
    newest = max(directory.glob("step-*"))
    found = with_the_owners_tool(newest / "variables")
    listed = json.loads((newest / "run.json").read_text())["variables"]
    by_path = {each["path"]: found[each["name"]] for each in listed}
    live = [*net.weights, *net.optimizer.variables]
    assert len(live) > len(net.weights) > 0
    to_numpy = keras.ops.convert_to_numpy
    lost = [v.path for v in live if not same(to_numpy(v.value), by_path[v.path])]
    assert lost == []


def test_tensors_are_equal_byte_for_byte_under_the_paths_of_variables(run, tmp_path):
    directory, _ = run
    target = resilient.export(directory, tmp_path / "run.safetensors")
    found, expected = paths_and_arrays(target), saved_variables(directory)
    assert sorted(found) == sorted(expected)
    assert "sequential" in " ".join(found)
    assert [name for name in found if not same(expected[name], found[name])] == []
    assert os.listdir(tmp_path) == ["run.safetensors"]


def test_every_type_keeps_its_bytes(tmp_path):
    from safetensors.numpy import save_file

    save_file(TENSORS, tmp_path / "x.safetensors")
    found = Source(tmp_path / "x.safetensors").tensors(None, {})
    assert sorted(found) == sorted(TENSORS)
    assert [name for name in found if not same(TENSORS[name], found[name])] == []


def test_safetensors_tell_the_step(run, tmp_path):
    from safetensors import safe_open

    target = resilient.export(run[0], tmp_path / "run.safetensors")
    with safe_open(target, "np") as file:
        assert file.metadata() == {"step": "6", "epoch": "1", "batch": "0"}


@pytest.mark.skipif(BACKEND != "torch", reason="torch has it without an option")
def test_a_type_that_a_format_lacks_is_refused_by_name(tmp_path):
    import torch

    wave = torch.zeros(1, dtype=torch.complex128)
    with resilient.Checkpoints(tmp_path / "run", [wave]) as checkpoints:
        checkpoints.save(1)
    with pytest.raises(NotSupportedError, match=r"complex128(?s:.*)variable 0"):
        resilient.export(tmp_path / "run", tmp_path / "x.safetensors")
    assert os.listdir(tmp_path) == ["run"]


def test_equal_paths_get_numbers():
    names = unique_names(["a", "b", "a", "a_2", "a"])
    assert names == ["a", "b", "a_2", "a_2_2", "a_3"]
    assert unique_names(["__metadata__"]) == ["__metadata___2"]  # which has the notes


def test_keras_loads_a_model_with_the_weights_and_the_optimizer(run, tmp_path):
    directory, net = run
    given = model(seed=3)
    before = random_state()
    target = resilient.export(directory, tmp_path / "model.keras", model=given)
    assert random_state() == before
    loaded = keras.models.load_model(target)
    assert loaded.loss == "mse"
    old, new = net.weights + optimizer(net), loaded.weights + optimizer(loaded)
    assert all(equal(*pair) for pair in zip(old, new, strict=True))


def equal(one, other):
    to_numpy = keras.ops.convert_to_numpy
    return same(to_numpy(one.value), to_numpy(other.value))


def optimizer(net):
    return list(net.optimizer.variables)


def test_weights_are_loaded_into_a_model_that_is_there(run, tmp_path):
    directory, net = run
    target = resilient.export(directory, tmp_path / "x.weights.h5", model=model())
    other = model(seed=3)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(target)
    old, new = net.weights + optimizer(net), other.weights + optimizer(other)
    assert len(old) > len(net.weights) > 0
    assert all(equal(*pair) for pair in zip(old, new, strict=True))


def test_an_older_step_is_exported_if_asked_for(run, tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="3, 6"):
        resilient.export(run[0], tmp_path / "model.keras", step=4)
    target = resilient.export(run[0], tmp_path / "x.keras", step=3, model=model())
    assert int(keras.models.load_model(target).optimizer.iterations) == 3


def test_no_model_is_made_of_what_a_checkpoint_says(run, tmp_path):
    """Keras would import whatever module it names, and look for the class there."""
    for name in ("x.keras", "x.weights.h5"):
        with pytest.raises(NotSupportedError, match="not rebuilt from the checkpoint"):
            resilient.export(run[0], tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_a_model_without_a_config_is_left_as_it_is(tmp_path):
    net = model(cls=lambda _: NoConfig(keras.layers.Dense(1)))
    fit(net, tmp_path / "run", epochs=1)
    target = tmp_path / "x.weights.h5"
    live = model(cls=lambda _: NoConfig(keras.layers.Dense(1)), seed=1)
    with pytest.raises(CheckpointMismatchError, match="not built yet"):
        resilient.export(tmp_path / "run", target, model=live)
    live(data()[0])
    weights = live.get_weights()
    resilient.export(tmp_path / "run", target, model=live)
    assert_equal(weights, live.get_weights())
    live.load_weights(target)
    assert_equal(net.get_weights(), live.get_weights())


def test_a_model_of_own_layers_is_made_where_keras_knows_them(tmp_path):
    net = model(of=lambda: [keras.Input((3,)), Scale(), keras.layers.Dense(1)])
    fit(net, tmp_path / "run", epochs=1)
    with keras.utils.custom_object_scope({"Scale": Scale}):
        resilient.export(tmp_path / "run", tmp_path / "own.keras", model=net)
        loaded = keras.models.load_model(tmp_path / "own.keras")
    assert_equal(net.get_weights(), loaded.get_weights())


def test_what_keras_would_lose_is_refused(tmp_path):
    def made():
        return model(of=lambda: [keras.Input((3,)), Forgetful(name="mine")])

    fit(made(), tmp_path / "run", epochs=1)
    with pytest.raises(NotSupportedError, match=r"does not save.*\n.*\n .*/mine/"):
        resilient.export(tmp_path / "run", tmp_path / "x.keras", model=made())
    assert os.listdir(tmp_path) == ["run"]


def test_another_model_is_refused_and_unchanged(run, tmp_path):
    other = model(of=lambda: layers(width=4))
    weights = other.get_weights()
    with pytest.raises(CheckpointMismatchError) as found:
        resilient.export(run[0], tmp_path / "model.keras", model=other)
    (path,) = (v.path for v in run[1].weights if tuple(v.shape) == (3, 2))
    assert f"the checkpoint has {path} (3, 2) float32" in str(found.value)
    assert_equal(weights, other.get_weights())
    assert os.listdir(tmp_path) == []


def test_layers_that_compute_something_else_are_refused_where_the_file_has_them(
    run, tmp_path
):
    def other():
        found = layers()
        next(x for x in found if hasattr(x, "activation")).activation = keras.ops.sin
        return found

    weights = model(of=other)
    resilient.export(run[0], tmp_path / "model.weights.h5", model=weights)
    with pytest.raises(CheckpointMismatchError, match="activation: the checkpoint has"):
        resilient.export(run[0], tmp_path / "model.keras", model=weights)
    assert os.listdir(tmp_path) == ["model.weights.h5"]


def test_variables_that_keras_files_have_no_place_for_are_named(tmp_path):
    def made():
        net = model()
        net.second = keras.optimizers.SGD(momentum=0.5)
        net.second.build(net.trainable_variables)
        return net

    fit(made(), tmp_path / "run", epochs=1)
    with pytest.warns(NotExactWarning, match=r"cannot hold these.*\n *second"):
        resilient.export(tmp_path / "run", tmp_path / "x.keras", model=made())


def test_what_a_loop_of_ones_own_saved_is_exported(tmp_path):
    variables = [keras.Variable(np.float32([1, 2]), name="mine") for _ in range(2)]
    with resilient.Checkpoints(tmp_path / "run", variables) as checkpoints:
        checkpoints.save(7)
    target = resilient.export(tmp_path / "run", tmp_path / "x.safetensors")
    found = paths_and_arrays(target)
    assert {name: found[name].tolist() for name in sorted(found)} == {
        "mine": [1, 2],
        "mine_2": [1, 2],
    }
    with pytest.raises(CheckpointMismatchError, match="does not match this model"):
        resilient.export(tmp_path / "run", tmp_path / "x.keras", model=model())


def test_a_loop_is_exported(tmp_path):
    variables = {"one": keras.Variable(np.float32([1, 2]), name="w")}
    run = resilient.Run(tmp_path / "run", verbose=0, **variables)
    for _ in run.loop(data(), epochs=1, batch_size=11):
        variables["one"].assign_add(np.float32([1, 1]))
    target = resilient.export(tmp_path / "run", tmp_path / "x.safetensors")
    found = paths_and_arrays(target)
    assert {name: value.tolist() for name, value in found.items()} == {"w": [3, 4]}


def test_replicas_are_merged_as_a_resume_in_one_process_would(tmp_path):
    """Counted values are added up, statistics averaged; see saving.reshard."""
    from resilient.convert.export import export
    from resilient.progress import Progress
    from resilient.saving.run_json import VariablesRun
    from resilient.saving.snapshot import NOWHERE, Snapshot
    from resilient.saving.writer import Unchanged, commit
    from resilient.storage.store import Store

    tensors = {
        "trainable.0000.w": np.float32([1, 2]),
        "non_trainable.0000.mean.replica_0": np.float32([1]),
        "non_trainable.0000.mean.replica_1": np.float32([3]),
    }
    listed = [
        {"name": name, "path": name[-4:], "shape": [], "dtype": "float32"}
        for name in ("trainable.0000.w", "non_trainable.0000.mean")
    ]
    snapshot = Snapshot(
        VariablesRun(variables=listed, replicas=2),
        NOWHERE,
        get_backend().snapshot(tensors),
        Progress(1, 0, 1),
    )
    (tmp_path / "run").mkdir()
    commit(Store(tmp_path / "run"), snapshot, get_backend().versions(), Unchanged())
    found = paths_and_arrays(export(tmp_path / "run", tmp_path / "x.safetensors"))
    assert {name: value.tolist() for name, value in found.items()} == {
        "00.w": [1, 2],
        "mean": [2],
    }


def test_a_damaged_checkpoint_is_an_error_and_stays(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    damaged = tmp_path / "run" / "step-00000006" / "run.json"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b" ")
    target = tmp_path / "x.safetensors"
    with pytest.raises(
        CorruptCheckpointError, match=r"run\.json does not match its checksum"
    ):
        resilient.export(tmp_path / "run", target)
    assert sorted(os.listdir(tmp_path)) == ["run"]
    assert damaged.exists()
    resilient.export(tmp_path / "run", target, step=3)


def test_a_target_that_exists_is_replaced_only_if_that_is_said(run, tmp_path):
    target = resilient.export(run[0], tmp_path / "x.safetensors", step=3)
    with pytest.raises(FileExistsError, match="already exists"):
        resilient.export(run[0], target)
    resilient.export(run[0], target, overwrite=True)
    found = paths_and_arrays(target)
    assert int(found[run[1].optimizer.iterations.path]) == 6
    assert os.listdir(tmp_path) == ["x.safetensors"]


ENDINGS = (".keras", ".weights.h5", ".safetensors")


def test_a_target_may_have_as_long_a_name_as_there_is(run, tmp_path):
    for ending in ENDINGS:
        name = "x" * (255 - len(ending)) + ending
        resilient.export(run[0], tmp_path / name, model=model())
        with pytest.raises(OSError, match="File name too long"):
            resilient.export(run[0], tmp_path / f"x{name}", model=model())
    assert len(os.listdir(tmp_path)) == 3
    with pytest.raises(FileNotFoundError):
        resilient.export(run[0], tmp_path / "gone" / "x.keras", model=model())


FULL = """
import resource, sys
from support.fitting import model
from support.full_disk import no_file_beyond
import resilient

run, place = sys.argv[1:]
for ending in (".keras", ".safetensors"):
    for size in (100, 1000, 1 << 20):
        no_file_beyond(size, hard=resource.RLIM_INFINITY)
        try:
            resilient.export(run, f"{place}/{size}{ending}", model=model())
        except OSError as error:
            assert "File too large" in str(error), error
"""


@pytest.mark.spread
def test_a_full_disk_is_an_error(run, tmp_path, tmp_path_factory):
    script = tmp_path_factory.mktemp("script") / "full.py"
    script.write_text(FULL)
    status, told = run_alone(script, run[0], tmp_path, timeout=200)
    assert status == 0, told[-2000:]
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == [f"{1 << 20}.keras", f"{1 << 20}.safetensors"]


def test_a_full_disk_is_no_crash_of_libhdf5(run, tmp_path, monkeypatch):
    full = SimpleNamespace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(OSError, match="No space left"):
        resilient.export(run[0], tmp_path / "x.weights.h5", model=model())
    assert os.listdir(tmp_path) == []


def test_a_directory_is_never_replaced(run, tmp_path):
    (tmp_path / "x.safetensors").mkdir()
    (tmp_path / "x.safetensors" / "mine").touch()
    with pytest.raises(FileExistsError, match="already exists"):
        resilient.export(run[0], tmp_path / "x.safetensors", overwrite=True)
    assert os.listdir(tmp_path) == ["x.safetensors"]
    assert os.listdir(tmp_path / "x.safetensors") == ["mine"]


def test_the_end_of_the_name_selects_the_format(run):
    for name in ("weights.h5", "model.pt", "tf"):
        with pytest.raises(ValueError, match="does not say which format"):
            resilient.export(run[0], name)


def test_a_missing_library_is_named_with_its_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(BackendNotAvailableError, match="pip install safetensors"):
        Source(Path("x.safetensors")).tensors(None, {})


def test_the_command_says_what_it_wrote(run, tmp_path, capsys):
    directory, _ = run
    target = tmp_path / "x.safetensors"
    assert main(["export", str(directory), "--to", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "source": str(directory / "step-00000006"),
        "target": str(target),
        "step": 6,
        "epoch": 1,
        "batch": 0,
    }
    assert main(["export", str(directory), "--to", str(target)]) == 5
    assert "already exists" in capsys.readouterr().err
    assert main(["export", str(directory), "--to", str(tmp_path / "x")]) == 2
    again = ["--to", str(target), "--force"]
    assert main(["export", str(directory / "step-00000003"), *again]) == 0
    assert "(step 3, 0 epochs done)" in capsys.readouterr().out
    assert main(["export", str(directory / "step-00000004"), *again]) == 3
    assert main(["export", str(directory), *again, "--model", "nowhere:make"]) == 2
    assert "--model nowhere:make: ModuleNotFoundError" in capsys.readouterr().err
    for made in ("builtins:dict", "builtins:nothing", "builtins"):
        assert main(["export", str(directory), *again, "--model", made]) == 2
        assert f"--model {made}: " in capsys.readouterr().err


@pytest.mark.spread
def test_the_command_needs_no_keras_backend_to_be_chosen(
    run, tmp_path, child_environment
):
    """It takes the one that saved, whose library it needs to read; a function of a
    module in the working directory makes the model."""
    (tmp_path / "train.py").write_text(
        "import keras\n"
        "def make():\n"
        "    print('made')\n"
        "    dense = keras.layers.Dense\n"
        "    net = keras.Sequential([keras.Input((3,)), dense(2, 'relu'),\n"
        "        keras.layers.Dropout(0.3), dense(1)])\n"
        "    net.compile('adam', 'mse')\n"
        "    return net\n"
    )
    environment = {k: v for k, v in child_environment.items() if k != "KERAS_BACKEND"}
    child = subprocess.run(
        [
            *(sys.executable, "-m", "resilient", "export", run[0], "--to", "x.keras"),
            *("--model", "train:make", "--json"),
        ],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout)["target"] == str(tmp_path / "x.keras")
    assert int(keras.models.load_model(tmp_path / "x.keras").optimizer.iterations) == 6


def test_show_lists_what_export_writes(run, tmp_path, capsys):
    directory, _ = run
    target = resilient.export(directory, tmp_path / "x.safetensors")
    assert main(["show", str(directory), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["run"]["variables"]
    assert {v["path"]: (v["shape"], v["dtype"]) for v in told} == {
        path: (list(tensor.shape), tensor.dtype.name)
        for path, tensor in paths_and_arrays(target).items()
    }


@pytest.mark.spread
def test_a_script_under_prove_exports_what_it_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(model(), "runs", epochs=1)
    for name, value in scratch.environment(tmp_path / "scratch").items():
        monkeypatch.setenv(name, value)
    other = model(seed=7)
    fit(other, "runs", epochs=1)
    resilient.export("runs", to="model.safetensors")
    tensors = paths_and_arrays(tmp_path / "model.safetensors")
    kernel = other.layers[0].kernel
    np.testing.assert_array_equal(tensors[kernel.path], other.get_weights()[0])
