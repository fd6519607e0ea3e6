"""A run begun from what Keras or safetensors wrote: complete, or refused."""

import json
import subprocess
import sys
import zipfile

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
from resilient import CheckpointMismatchError, NotExactWarning, NotSupportedError
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
        history = fit(net, tmp_path / "run", callbacks=[callback], shuffle=False)
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
    with pytest.raises(ValueError, match="Pass step, too"):
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
        with pytest.raises(CheckpointMismatchError, match="Nothing was written"):
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
    assert (
        "  layers/dense/vars/0: the source has (3, 2) float32, the model (3, 4) float32"
        in lines
    )


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
    with pytest.raises(ValueError, match="in the middle of an epoch") as error:
        resilient.import_checkpoint(
            tmp_path / "batches", model(), checkpoint_dir=tmp_path / "two"
        )
    assert "epoch=1 to train that epoch from its beginning" in str(error.value)
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

    source, backup = as_weights(trained, tmp_path), as_backup(trained, tmp_path)
    with pytest.raises(ValueError, match="how many epochs are done"):
        attempt(source)
    with pytest.raises(ValueError, match="no such epoch"):
        attempt(source, epoch=-1)
    with pytest.raises(ValueError, match="saved at a different epoch"):
        attempt(backup, epoch=1)
    with pytest.raises(ValueError, match="more epochs than steps"):
        attempt(source, epoch=2, step=1)
    with pytest.raises(FileNotFoundError, match="nothing to import"):
        attempt(tmp_path / "no.keras", epoch=1)
    (tmp_path / "x.txt").touch()
    with pytest.raises(NotSupportedError, match="Unrecognised checkpoint format"):
        attempt(tmp_path / "x.txt", epoch=1)
    with pytest.raises(NotSupportedError, match="it is not compiled"):
        attempt(source, keras.Sequential(layers()), epoch=1)
    with pytest.raises(NotSupportedError, match="it is not built"):
        attempt(source, model(of=lambda: [keras.layers.Dense(1)]), epoch=1)
    with pytest.raises(TypeError, match=r"keras\.Model"):
        attempt(source, "model", epoch=1)


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
    with pytest.raises(NotSupportedError, match="cannot be read as"):
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
    "written", ["x.pt", "x.pth", "ckpt.index", "ckpt/checkpoint", "tree/_METADATA"]
)
def test_what_other_libraries_wrote_is_refused(tmp_path, written):
    """The hint says how to convert it; TensorFlow's is named without ``.index``."""
    (tmp_path / written).parent.mkdir(exist_ok=True)
    (tmp_path / written).touch()
    inside = "/" in written
    source = tmp_path / (written.split("/")[0] if inside else written)
    for named in (source, source.with_suffix("") if ".index" in written else source):
        with pytest.raises(NotSupportedError, match="Unrecognised checkpoint format"):
            resilient.import_checkpoint(
                named, model(), checkpoint_dir=tmp_path / "run", epoch=3
            )
    assert not (tmp_path / "run").exists()


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


@pytest.mark.parametrize("told", ["{}", "[]", '{"epoch": -1, "batch": 0}', "no json"])
def test_a_backup_that_does_not_say_where_it_was_is_refused(trained, tmp_path, told):
    source = as_backup(trained, tmp_path)
    (source / "training_metadata.json").write_text(told)
    with pytest.raises(NotSupportedError, match="does not say how far"):
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
    assert "the next fit begins at epoch 3" in child.stdout
    assert "callbacks, History and metrics" in child.stderr
    assert steps(tmp_path / "run") == [12]
    sys.path.insert(0, str(tmp_path))
    sys.modules.pop("train", None)  # that of another test
    try:
        assert main([*command, "2", "--json"]) == 5
        assert json.loads(capsys.readouterr().out)["error"] == "ResilientError"
        command[3] = str(tmp_path / "other")
        assert main([*command, "-1"]) == 2
        assert "no such epoch" in capsys.readouterr().err
    finally:
        sys.path.remove(str(tmp_path))
