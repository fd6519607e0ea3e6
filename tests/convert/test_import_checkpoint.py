"""A run begun from another, or from what Keras or safetensors wrote: all, or none."""

import json
import os
import subprocess
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
from support.fitting import (
    Interrupt,
    arguments,
    fit,
    interrupted,
    layers,
    steps,
    values,
)
from support.fitting import model as new_model

import resilient
from resilient import (
    CheckpointMismatchError,
    CorruptCheckpointError,
    NotExactWarning,
    NotSupportedError,
)
from resilient.cli.main import main

# Keras reads a variable in a way that numpy 2.4 says will end.
pytestmark = [
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),
]

BACKEND = keras.backend.backend()
ANEW = r"does not contain these, so they start from scratch"


def model(**given):
    """A model with the names that it has in a process of its own."""
    keras.utils.clear_session(free_memory=False)
    return new_model(**given)


@pytest.fixture(scope="module")
def trained():
    """A model after two epochs of Keras's own fit."""
    net = model()
    net.fit(**arguments(epochs=2))
    return net


def weights_and_optimizer(net):
    """As a list of arrays."""
    variables = [*net.weights, *net.optimizer.variables]
    return [np.array(keras.ops.convert_to_numpy(v.value)) for v in variables]


def same(expected, actual):
    pairs = zip(expected, actual, strict=True)
    return all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        for a, b in pairs
    )


def as_keras(net, path):
    net.save(path / "x.keras")
    return path / "x.keras"


def as_weights(net, path):
    net.save_weights(path / "x.weights.h5")
    return path / "x.weights.h5"


def as_backup(net, path):
    (path / "backup").mkdir()
    net.save_weights(path / "backup" / "latest.weights.h5")
    told = json.dumps({"epoch": 2, "batch": 0})
    (path / "backup" / "training_metadata.json").write_text(told)
    return path / "backup"


def arrays_by_path(net):
    variables = [*net.variables, *net.optimizer.variables]
    return {v.path: np.asarray(keras.ops.convert_to_numpy(v.value)) for v in variables}


def as_safetensors(net, path):
    from safetensors.numpy import save_file

    save_file(arrays_by_path(net), path / "x.safetensors")
    return path / "x.safetensors"


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(as_keras, marks=pytest.mark.everywhere),
        as_weights,
        as_backup,
        pytest.param(as_safetensors, marks=pytest.mark.everywhere),
    ],
)
def test_the_next_fit_goes_on_with_the_weights_and_the_optimizer(
    trained, tmp_path, write
):
    """It begins at that epoch, trains what is left of it, and says what it lacks."""
    source = write(trained, tmp_path)
    before, live = weights_and_optimizer(trained), model(seed=1)
    live.optimizer.build(live.trainable_variables)
    untouched = weights_and_optimizer(live)
    with pytest.warns(NotExactWarning, match=ANEW) as told:
        checkpoint = resilient.import_checkpoint(
            source, live, checkpoint_dir=tmp_path / "run", epoch=2
        )
    told = [each for each in told if each.category is NotExactWarning]
    assert len(told) == 1
    assert "the optimizer\n" not in str(told[0].message)
    assert same(untouched, weights_and_optimizer(live))
    assert (checkpoint.step, checkpoint.progress.epoch) == (12, 2)

    net, seen = model(seed=2), []
    callback = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(
            (epoch, same(before, weights_and_optimizer(net)))
        )
    )
    with pytest.warns(NotExactWarning, match=ANEW):
        history = fit(
            net,
            tmp_path / "run",
            callbacks=[callback],
            shuffle=False,
            save_freq="epoch",
        )
    assert seen == [(2, True)]
    assert history.epoch == [2]
    assert int(net.optimizer.iterations) == 18
    assert net._initial_epoch is None
    assert steps(tmp_path / "run") == [12, 18]


def test_it_trains_as_keras_would_that_loaded_the_weights(tmp_path, trained):
    """The same bytes as ``load_weights`` and ``fit(initial_epoch=2)``."""
    source = as_weights(trained, tmp_path)
    theirs = model(seed=9)
    theirs.optimizer.build(theirs.trainable_variables)
    theirs.load_weights(source)
    theirs.fit(**arguments(initial_epoch=2))
    with pytest.warns(NotExactWarning, match=ANEW):
        resilient.import_checkpoint(
            source, model(), checkpoint_dir=tmp_path / "run", epoch=2
        )
    ours = model(seed=9)
    with pytest.warns(NotExactWarning, match=ANEW):
        fit(ours, tmp_path / "run")
    assert same(values(theirs), values(ours))


def test_weights_alone_begin_with_a_new_optimizer(trained, tmp_path):
    from safetensors.numpy import save_file

    arrays, source = arrays_by_path(trained), tmp_path / "x.safetensors"
    save_file({v.path: arrays[v.path] for v in trained.weights}, source)
    with pytest.raises(ValueError, match=r" 0 steps(?s:.*)0 if there is no optimizer"):
        resilient.import_checkpoint(
            source, model(), checkpoint_dir=tmp_path / "run", epoch=1
        )
    with pytest.warns(NotExactWarning, match=r"the optimizer"):
        resilient.import_checkpoint(
            source, model(), checkpoint_dir=tmp_path / "run", epoch=0
        )
    net = model(optimizer=keras.optimizers.Adam(0.5), seed=1)
    with pytest.warns(NotExactWarning, match=r"the optimizer"):
        resilient.ResilientFit(net, checkpoint_dir=tmp_path / "run").fit(
            **arguments(epochs=1)
        )
    assert float(net.optimizer.learning_rate) == 0.5
    assert int(net.optimizer.iterations) == 6


def test_weights_of_a_file_without_an_optimizer(trained, tmp_path):
    plain = keras.Sequential(layers())
    plain.set_weights(trained.get_weights())
    source = as_weights(plain, tmp_path)
    with pytest.warns(NotExactWarning, match="the optimizer"):
        resilient.import_checkpoint(
            source, model(), checkpoint_dir=tmp_path / "run", epoch=0
        )
    net = model(seed=1)
    resilient.ResilientFit(net, checkpoint_dir=tmp_path / "run").restore()
    assert same(trained.get_weights(), net.get_weights())


def test_a_kill_before_the_first_save_begins_from_the_import_again(trained, tmp_path):
    source = as_backup(trained, tmp_path)
    with pytest.warns(NotExactWarning, match=ANEW):
        resilient.import_checkpoint(source, model(), checkpoint_dir=tmp_path / "run")
    for _ in range(2):
        with pytest.warns(NotExactWarning, match=ANEW):
            interrupted(tmp_path / "run", 2, 3, net=model(), save_freq=100)
        assert steps(tmp_path / "run") == [12]
    with pytest.warns(NotExactWarning, match=ANEW):
        interrupted(tmp_path / "run", 2, 3, net=model(), save_freq=2)
    net = model(seed=3)
    fit(
        net, tmp_path / "run", callbacks=[Interrupt()]
    )  # no warning any more: a checkpoint of its own
    assert int(net.optimizer.iterations) == 18


# Keras writes these alike on each backend.
ALIKE = (as_weights, as_backup, as_safetensors)


@pytest.mark.parametrize(
    "write",
    [pytest.param(as_keras, marks=pytest.mark.everywhere), *ALIKE],
)
def test_another_model_is_refused_and_nothing_is_written(trained, tmp_path, write):
    source = write(trained, tmp_path)
    for other in (
        model(of=lambda: layers(width=4)),
        model(of=lambda: [*layers(), keras.layers.Dense(1)]),
        model(of=lambda: layers()[:2]),
        model(optimizer=keras.optimizers.SGD(momentum=0.5)),
    ):
        other.optimizer.build(other.trainable_variables)
        before = weights_and_optimizer(other)
        with pytest.raises(CheckpointMismatchError, match="Nothing was changed"):
            resilient.import_checkpoint(
                source, other, checkpoint_dir=tmp_path / "run", epoch=2
            )
        assert same(before, weights_and_optimizer(other))
        assert not (tmp_path / "run").exists()


def test_differences_are_listed_by_name(trained, tmp_path):
    source = as_weights(trained, tmp_path)
    wider = model(of=lambda: [*layers(width=4), keras.layers.Dense(1)])
    with pytest.raises(CheckpointMismatchError) as found:
        resilient.import_checkpoint(
            source, wider, checkpoint_dir=tmp_path / "run", epoch=2
        )
    lines = str(found.value).splitlines()
    assert "  missing: layers/dense_2/vars/0" in lines
    assert "  layers/dense/vars/0: (3, 2) float32  there, (3, 4) float32  here" in lines


def test_several_processes_are_refused(trained, tmp_path):
    from resilient.backends import get_backend
    from resilient.backends.base import Part
    from resilient.saving import record

    with pytest.warns(NotExactWarning, match=ANEW):
        checkpoint = resilient.import_checkpoint(
            as_backup(trained, tmp_path), model(), checkpoint_dir=tmp_path / "run"
        )
    with pytest.raises(NotSupportedError, match="resumed by a single process"):
        checkpoint.load(record.PartReader(get_backend(), Part(0, 2, 2)))


def test_a_backup_of_keras_itself(tmp_path):
    """It tells the epoch; one saved in mid-epoch has to be told where to begin."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 10:
                raise KeyboardInterrupt

    for directory, save_freq in (("epochs", "epoch"), ("batches", 4)):
        backup = keras.callbacks.BackupAndRestore(tmp_path / directory, save_freq)
        with pytest.raises(KeyboardInterrupt):
            model().fit(**arguments(callbacks=[backup, Stop()]))
    with pytest.warns(NotExactWarning, match=ANEW):
        found = resilient.import_checkpoint(
            tmp_path / "epochs", model(), checkpoint_dir=tmp_path / "one"
        )
    assert found.progress._asdict() == {"step": 6, "epoch": 1, "batch": 0}
    with pytest.raises(ValueError, match=r"epoch 1, batch 1(?s:.*)in the middle of an"):
        resilient.import_checkpoint(
            tmp_path / "batches", model(), checkpoint_dir=tmp_path / "two"
        )
    with pytest.warns(NotExactWarning, match=ANEW):
        found = resilient.import_checkpoint(
            tmp_path / "batches", model(), checkpoint_dir=tmp_path / "two", epoch=2
        )
    assert found.progress._asdict() == {"step": 8, "epoch": 2, "batch": 0}


def test_what_has_to_be_told(trained, tmp_path):
    def attempt(source, net=None, **told):
        directory = tmp_path / "run"
        net = net or model()
        resilient.import_checkpoint(source, net, checkpoint_dir=directory, **told)

    source = as_weights(trained, tmp_path)
    for wrong in ({}, {"epoch": -1}, {"epoch": 13}):
        with pytest.raises(ValueError, match="has to begin with an epoch"):
            attempt(source, **wrong)
    (tmp_path / "x.txt").touch()
    for nothing in ("no.keras", "x.txt"):
        with pytest.raises(NotSupportedError, match="nothing at this path"):
            attempt(tmp_path / nothing, epoch=1)
    with pytest.raises(CheckpointMismatchError, match="unexpected: optimizer/"):
        attempt(source, keras.Sequential(layers()), epoch=1)
    with pytest.raises(NotSupportedError, match="not yet been built"):
        attempt(source, model(of=lambda: [keras.layers.Dense(1)]), epoch=1)
    with pytest.raises(TypeError, match=r"keras\.Model"):
        attempt(source, "model", epoch=1)
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_there_is_not_mixed_up(trained, tmp_path):
    interrupted(tmp_path / "run", 1, 2)
    with pytest.raises(resilient.ResilientError, match="already has a run"):
        resilient.import_checkpoint(
            as_backup(trained, tmp_path), model(), checkpoint_dir=tmp_path / "run"
        )


def test_an_import_of_another_model_is_refused_by_fit(trained, tmp_path):
    with pytest.warns(NotExactWarning, match=ANEW):
        resilient.import_checkpoint(
            as_backup(trained, tmp_path), model(), checkpoint_dir=tmp_path / "run"
        )
    for other in (model(of=lambda: layers(width=4)), model(optimizer="sgd")):
        before = other.get_weights()
        with pytest.raises(CheckpointMismatchError, match="does not match this model"):
            fit(other, tmp_path / "run")
        assert same(before, other.get_weights())


def test_a_keras_file_with_more_than_weights_is_refused(trained, tmp_path):
    source = as_keras(trained, tmp_path)
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr("assets/layers/text/vocabulary.txt", "a\nb\n")
    with pytest.raises(NotSupportedError, match="vocabulary"):
        resilient.import_checkpoint(
            source, model(), checkpoint_dir=tmp_path / "run", epoch=2
        )


@pytest.mark.everywhere
@pytest.mark.parametrize("name", ["x.keras", "x.weights.h5", "x.safetensors"])
def test_what_is_no_such_file_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"no such file")
    with pytest.raises(NotSupportedError, match="damaged or of another format"):
        resilient.import_checkpoint(
            tmp_path / name, model(), checkpoint_dir=tmp_path / "run", epoch=2
        )


class Forgetful(keras.layers.Layer):
    """A layer that does not save what it has."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.scale

    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


def test_a_variable_that_loading_leaves_out_is_missing(tmp_path):
    def made():
        return model(of=lambda: [keras.Input((3,)), Forgetful(name="mine")])

    net = made()
    net.optimizer.build(net.trainable_variables)
    source = as_weights(net, tmp_path)
    with pytest.raises(CheckpointMismatchError, match=r"missing: .*/mine/"):
        resilient.import_checkpoint(
            source, made(), checkpoint_dir=tmp_path / "run", epoch=2
        )


def test_an_import_is_exported(trained, tmp_path):
    with pytest.warns(NotExactWarning, match=ANEW):
        resilient.import_checkpoint(
            as_backup(trained, tmp_path), model(), checkpoint_dir=tmp_path / "run"
        )
    target = resilient.export(tmp_path / "run", tmp_path / "y.keras", model=model())
    loaded = keras.models.load_model(target)
    assert same(weights_and_optimizer(trained), weights_and_optimizer(loaded))


@pytest.mark.parametrize(
    "written", ["x.pt", "ckpt.index", "ckpt/checkpoint", "tree/_METADATA"]
)
def test_what_other_libraries_wrote_is_refused_with_a_way_to_convert_it(
    tmp_path, written
):
    (tmp_path / written).parent.mkdir(exist_ok=True)
    (tmp_path / written).touch()
    source = tmp_path / written.partition("/")[0]
    for named in (source, source.with_suffix("")):
        with pytest.raises(NotSupportedError, match=r"converted(?s:.*)save_weights\("):
            resilient.import_checkpoint(
                named, model(), checkpoint_dir=tmp_path / "run", epoch=3
            )
    assert not (tmp_path / "run").exists()


@pytest.mark.waits
@pytest.mark.parametrize("which", ["run", "run/step-00000006"])
def test_a_run_is_imported(tmp_path, which):
    """Its newest checkpoint, or another one; layers may have other names by now."""
    interrupted(tmp_path / "run", 1, 4, net=model(), save_freq=3)
    step = 6 if "step" in which else 9
    net = new_model(seed=1)
    old = resilient.ResilientFit(net, checkpoint_dir=tmp_path / "run")
    old.restore(step)
    given, epoch = ({}, 1) if step == 6 else ({"epoch": 2}, 2)
    if given:
        with pytest.raises(ValueError, match="epoch 1, batch 3"):
            resilient.import_checkpoint(
                tmp_path / which, new_model(), checkpoint_dir=tmp_path / "other"
            )
    with pytest.warns(NotExactWarning, match=ANEW):
        made = resilient.import_checkpoint(
            tmp_path / which, new_model(), checkpoint_dir=tmp_path / "other", **given
        )
    assert made.progress._asdict() == {"step": step, "epoch": epoch, "batch": 0}
    other = new_model(seed=2)
    resilient.ResilientFit(other, checkpoint_dir=tmp_path / "other").restore()
    assert same(weights_and_optimizer(net), weights_and_optimizer(other))
    wider = model(of=lambda: layers(width=4))
    with pytest.raises(
        CheckpointMismatchError, match=r"\(3, 2\) float32 there, \(3, 4"
    ):
        resilient.import_checkpoint(
            tmp_path / which, wider, checkpoint_dir=tmp_path / "third", epoch=2
        )


@pytest.mark.waits
def test_a_damaged_run_is_not_imported(tmp_path):
    interrupted(tmp_path / "run", 1, 0, net=model(), save_freq=3)
    (damaged,) = (tmp_path / "run").glob("step-*6")
    (damaged / "run.json").write_bytes(b"{}")
    with pytest.raises(CorruptCheckpointError, match=r"step 6 is damaged"):
        resilient.import_checkpoint(
            tmp_path / "run", model(), checkpoint_dir=tmp_path / "other"
        )
    assert damaged.is_dir()


def test_what_we_exported_is_imported(tmp_path):
    net = interrupted(tmp_path / "run", 1, None, net=model())
    source = resilient.export(tmp_path / "run", tmp_path / "x.safetensors")
    with pytest.warns(NotExactWarning, match=ANEW):
        resilient.import_checkpoint(
            source, model(), checkpoint_dir=tmp_path / "again", epoch=2
        )
    other = model(seed=1)
    resilient.ResilientFit(other, checkpoint_dir=tmp_path / "again").restore()
    resilient.ResilientFit(net, checkpoint_dir=tmp_path / "run").restore()
    assert same(weights_and_optimizer(net), weights_and_optimizer(other))


@pytest.mark.parametrize("link", [h5py.SoftLink, h5py.ExternalLink])
def test_no_link_in_a_file_is_followed(trained, tmp_path, link):
    source = as_weights(trained, tmp_path)
    name = "layers/dense/vars/0"
    with h5py.File(source, "r+") as file, h5py.File(tmp_path / "y.h5", "w") as other:
        other["x"] = file[name][...]
        file.move(name, "elsewhere")
        external = link is h5py.ExternalLink
        file[name] = link(other.filename, "x") if external else link("/elsewhere")
        del file["elsewhere" if external else "layers/dense/vars/1"]
    with pytest.raises(CheckpointMismatchError, match=f"missing: {name}"):
        resilient.import_checkpoint(
            source, model(), checkpoint_dir=tmp_path / "run", epoch=2
        )


@pytest.mark.parametrize("stored", ["f8", "i8"])
def test_a_dtype_that_is_only_named_is_not_cast(trained, tmp_path, stored):
    source = as_weights(trained, tmp_path)
    with h5py.File(source, "r+") as file:
        array = file["layers/dense/vars/0"][...].astype(stored)
        del file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = array
        file["layers/dense/vars/0"].attrs["dtype"] = "float32"
    with pytest.raises(CheckpointMismatchError, match=f"{array.dtype} float32 there"):
        resilient.import_checkpoint(
            source, model(), checkpoint_dir=tmp_path / "run", epoch=2
        )


def test_a_flipped_bit_in_a_keras_file_is_noticed(trained, tmp_path):
    """Nothing else in such a file has a checksum, and a .weights.h5 has none."""
    source = as_keras(trained, tmp_path)
    raw = bytearray(source.read_bytes())
    value = np.asarray(trained.layers[0].kernel).tobytes()
    raw[raw.index(value)] ^= 1
    source.write_bytes(raw)
    with pytest.raises(NotSupportedError, match="Bad CRC-32"):
        resilient.import_checkpoint(
            source, model(), checkpoint_dir=tmp_path / "run", epoch=2
        )


@pytest.mark.parametrize("name", ["x.keras", "x.weights.h5", "x.safetensors"])
def test_a_path_that_blocks_its_reader_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(NotSupportedError, match="nothing at this path"):
        resilient.import_checkpoint(
            tmp_path / name, model(), checkpoint_dir=tmp_path / "run", epoch=2
        )


@pytest.mark.parametrize("told", ["{}", "[]", '{"epoch": -1, "batch": 0}', "no json"])
def test_a_backup_that_does_not_say_where_it_was_is_refused(trained, tmp_path, told):
    """Unless the epoch is given."""
    source = as_backup(trained, tmp_path)
    (source / "training_metadata.json").write_text(told)
    with pytest.raises(ValueError, match="has to begin with an epoch"):
        resilient.import_checkpoint(source, model(), checkpoint_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command(trained, tmp_path, child_environment, capsys):
    """A function of a module in the working directory makes the model."""
    source = as_weights(trained, tmp_path)
    (tmp_path / "train.py").write_text(
        "import keras\n"
        "def make():\n"
        "    dense = keras.layers.Dense\n"
        "    net = keras.Sequential([keras.Input((3,)), dense(2, 'relu'),\n"
        "        keras.layers.Dropout(0.3), dense(1)])\n"
        "    net.compile('adam', 'mse')\n"
        "    return net\n"
    )
    command = ["import", str(source), "--to", str(tmp_path / "run")]
    command += ["--model", "train:make", "--epoch"]
    child = subprocess.run(
        [sys.executable, "-m", "resilient", *command, "2"],
        env=child_environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert child.returncode == 0, child.stderr
    assert "(step 12, 2 epochs done)" in child.stdout
    assert "callbacks, History and metrics" in child.stderr
    assert steps(tmp_path / "run") == [12]
    sys.path.insert(0, str(tmp_path))
    sys.modules.pop("train", None)  # that of another test
    try:
        assert main([*command, "2", "--json"]) == 5
        assert json.loads(capsys.readouterr().out)["error"] == "ResilientError"
        command[3] = str(tmp_path / "other")
        assert main([*command, "-1"]) == 2
        assert "has to begin with an epoch" in capsys.readouterr().err
    finally:
        sys.path.remove(str(tmp_path))
