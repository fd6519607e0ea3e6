"""What somebody else wrote as a callback's state changes its data, and no more."""

import inspect
import json
import os

import keras
import numpy as np
import pytest

from resilient.errors import (
    CheckpointMismatchError,
    NotExactWarning,
)
from resilient.objects.callbacks.capture import CallbackStates
from resilient.serialization.json_values import encode

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
    pytest.mark.spread,
]

CANARY = "canary"


class Mine(keras.callbacks.Callback):
    limit = 3

    def __init__(self):
        super().__init__()
        self.count = 0
        self.better = np.less

    def on_epoch_end(self, epoch, logs=None):
        self.count += 1

    @property
    def half(self):
        raise AssertionError("a property was asked")

    @half.setter
    def half(self, value):
        raise AssertionError("a property was set")


def states_of(callback):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    callback.set_model(model)
    callback.set_params({"verbose": 0, "epochs": 1, "steps": 1})
    callback.on_train_begin()
    return CallbackStates([callback])


def with_entry(states, home, entry):
    """A state as the callback's own, and this in it."""
    found = json.loads(json.dumps(states.capture({})[0]))
    found[0]["objects"][found[0]["name"] + home] = entry
    return found


@pytest.mark.parametrize(
    ("home", "name"),
    [
        ("", "on_epoch_end"),
        ("", "set_model"),
        ("", "half"),
        ("", "__class__"),
        ("", "__dict__"),
        (":Mine", "on_epoch_end"),
        (":Mine", "__init__"),
    ],
)
def test_methods_and_classes_stay_what_they_are(home, name):
    callback = Mine()
    states = states_of(callback)
    entry = {"attributes": {name: encode(int, {}, "v")}}
    with pytest.warns(NotExactWarning, match="could not be restored"):
        states.restore(with_entry(states, home, entry), {})
    assert type(callback) is Mine
    assert set(vars(callback)) >= {"count", "better"}
    assert "on_epoch_end" not in vars(callback)
    callback.on_epoch_end(0)
    assert callback.count == 1
    assert inspect.isfunction(Mine.on_epoch_end)
    assert inspect.isfunction(Mine.__init__)


def test_a_function_is_not_exchanged_for_one_that_was_not_there():
    callback = Mine()
    states = states_of(callback)
    for name in ("os:system", "test_hostile_callbacks:states_of", "builtins:exec"):
        entry = {"attributes": {"better": {"!": "import", "v": name}}}
        with pytest.raises(CheckpointMismatchError, match="not have in the same place"):
            states.restore(with_entry(states, "", entry), {})
    assert callback.better is np.less


def keras_callbacks(place):
    """Every callback of Keras that is given a place to write to."""
    for name, cls in sorted(vars(keras.callbacks).items()):
        if not inspect.isclass(cls) or not issubclass(cls, keras.callbacks.Callback):
            continue
        places = {"filepath", "filename", "directory", "log_dir", "backup_dir", "root"}
        given = places & set(inspect.signature(cls.__init__).parameters)
        if not given or (name == "TensorBoard" and not has("tensorflow")):
            continue
        if name == "OrbaxCheckpoint" and not has("orbax.checkpoint"):
            continue
        end = ".weights.h5" if "filepath" in given else ""
        more = {"save_weights_only": True} if "filepath" in given else {}
        yield cls(**dict.fromkeys(given, f"{place}/{name}{end}"), **more)


def has(module):
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def test_where_keras_writes_is_not_for_a_checkpoint_to_say(tmp_path):
    """Of every attribute in which Keras keeps a path that the script gave."""
    (tmp_path / CANARY).mkdir()
    found = list(keras_callbacks(tmp_path / CANARY))
    assert len(found) >= 4
    for callback in found:
        states = states_of(callback)
        texts = {
            key: value
            for key, value in vars(callback).items()
            if isinstance(value, str | os.PathLike) and CANARY in str(value)
        }
        assert texts, type(callback)
        for key in texts:
            entry = {"attributes": {key: "/somewhere/else"}}
            with pytest.warns(NotExactWarning, match="could not be restored"):
                states.restore(with_entry(states, "", entry), {})
        assert {key: getattr(callback, key) for key in texts} == texts
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.csv_file.close()


def test_a_place_that_the_script_changed_is_named(tmp_path):
    callback = keras.callbacks.ModelCheckpoint(tmp_path / "a.keras")
    states = states_of(callback)
    callback.filepath = str(tmp_path / "b.keras")
    states.capture({})
    assert states.uncaptured() == ["ModelCheckpoint.filepath (str)"]


def test_a_file_of_the_user_is_never_overwritten(tmp_path):
    """Of a file only the place is kept; its content is not a checkpoint's to say."""
    from resilient.objects import kinds, leaves

    path = tmp_path / "data"
    path.write_text("precious")
    with open(path, "r+") as file:
        kind = kinds.kind_of(file, files=True)
        name, _, content = leaves.read(file, kind)
        assert content is None
        with pytest.raises(ValueError, match="not in memory"):
            leaves.write(file, kind, (name, 0, "overwritten"))
    assert path.read_text() == "precious"


class Tidy(keras.callbacks.Callback):
    """Has a function that is dangerous elsewhere."""

    def __init__(self):
        super().__init__()
        self.report, self.remove = print, os.remove


def several(tmp_path):
    """Callbacks, their states, and what these are as JSON."""
    place = str(tmp_path / "a.weights.h5")
    callbacks = [
        keras.callbacks.ModelCheckpoint(place, save_weights_only=True),
        Tidy(),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
    ]
    for callback in callbacks:
        callback.set_model(keras.Sequential())
        callback.on_train_begin()
    states = CallbackStates(callbacks)
    return callbacks, states, json.loads(json.dumps(states.capture({})[0]))


def ref(home):
    return {"!": "ref", "v": home}


@pytest.mark.parametrize(
    ("index", "attribute", "value"),
    [
        (0, "filepath", ref("callbacks.Tidy.1.evil+")),
        (0, "filepath", ref("callbacks.Tidy.1")),
        (0, "filepath", ref("callbacks.Tidy.1.report")),
        (1, "report", ref("callbacks.Tidy.1.remove")),
        (1, "_model", 5),
        (1, "params", 5),
        (2, "csv_file", 5),
        (2, "csv_file", ref("callbacks.Tidy.1")),
    ],
)
def test_no_reference_leads_to_places_functions_and_what_is_hidden(
    tmp_path, index, attribute, value
):
    callbacks, states, found = several(tmp_path)
    before = vars(callbacks[index])[attribute]
    evil = {"made": ["list", None], "items": ["/elsewhere"]}
    found[1]["objects"]["callbacks.Tidy.1.evil+"] = evil
    found[index]["objects"][found[index]["name"]] = {"attributes": {attribute: value}}
    with pytest.warns(NotExactWarning, match="could not be restored"):
        states.restore(found, {})
    assert vars(callbacks[index])[attribute] is before
    callbacks[2].csv_file.close()


def test_a_place_cannot_be_deleted(tmp_path):
    callbacks, states, found = several(tmp_path)
    found[0]["objects"][found[0]["name"]] = {"gone": ["filepath"]}
    with pytest.warns(NotExactWarning, match="could not be restored"):
        states.restore(found, {})
    assert callbacks[0].filepath == str(tmp_path / "a.weights.h5")
    callbacks[2].csv_file.close()


def test_a_function_that_moved_to_another_attribute_is_named(tmp_path):
    callbacks, states, _ = several(tmp_path)
    callbacks[1].report = callbacks[1].remove
    states.capture({})
    (name,) = states.uncaptured()
    assert name.startswith("Tidy.report ")
    callbacks[2].csv_file.close()
