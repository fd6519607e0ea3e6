"""What ``fit`` shows of itself: Keras's parameters, and those of ``ResilientFit``."""

import inspect
from typing import Any

import keras
import numpy as np
import pytest

import resilient


def _shown(function: Any) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each parameter."""
    parameters = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in parameters]


def test_fit_shows_keras_parameters_as_they_are_in_this_keras() -> None:
    """Names, order, kinds and defaults are those of the installed ``Model.fit``."""
    keras_parameters = _shown(keras.Model.fit)[1:]
    assert _shown(resilient.ResilientFit.fit)[1:] == keras_parameters
    model, *shown = _shown(resilient.fit)
    assert shown[: len(keras_parameters)] == keras_parameters
    assert shown[len(keras_parameters) :] == _shown(resilient.ResilientFit)[1:]
    assert model == _shown(resilient.ResilientFit)[0]


def test_all_that_take_the_options_of_a_run_show_them_alike() -> None:
    """Run has other types for some, and options of its own."""
    ours = inspect.signature(resilient.ResilientFit).parameters
    shared = {name: each for name, each in ours.items() if name != "model"}
    del shared["checkpoint_dir"]
    enabled = dict(inspect.signature(resilient.enabled).parameters)
    assert list(enabled) == ["directory", *shared]
    assert {**enabled, **shared} == enabled
    callback = inspect.signature(resilient.BackupAndRestore).parameters
    assert callback["save_freq"].default == "epoch"
    assert {**callback, **shared, "save_freq": callback["save_freq"]} == callback
    run = inspect.signature(resilient.Run).parameters
    of_fit = shared.keys() - run.keys()
    assert of_fit == {"stateful", "on_nan", "loss_spike"}
    for name in shared.keys() - of_fit:
        assert (run[name].kind, run[name].default) == (
            shared[name].kind,
            shared[name].default,
        )
    assert run["objects"].kind is inspect.Parameter.VAR_KEYWORD


@pytest.mark.parametrize("shown", [resilient.fit, resilient.Run])
def test_help_describes_each_option(shown: Any) -> None:
    text = inspect.getdoc(shown) or ""
    for name in inspect.signature(shown).parameters:
        of_keras = name in inspect.signature(keras.Model.fit).parameters
        assert f"\n    {name}: " in text or name == "objects" or of_keras
    assert "\n    ...:" not in text


class Own(keras.Model):
    """Its fit has other parameters, another default, and one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.told: dict[str, Any] = {}

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def fit(
        self, x: Any, y: Any, epochs: int = 3, note: str = "", **others: Any
    ) -> Any:
        self.told = {"epochs": epochs, "note": note, **others}
        return super().fit(x, y, 8, epochs, 0)


@pytest.mark.parametrize("form", ["fit", "ResilientFit"])
def test_only_what_was_given_is_passed_on(form: str, tmp_path: Any) -> None:
    """A model's own fit keeps its defaults, and gets the parameters that it adds."""
    x, y = np.zeros((16, 2), "float32"), np.zeros((16, 1), "float32")
    model = Own()
    model.compile("sgd", "mse")
    if form == "fit":
        history = resilient.fit(model, x, y, note="mine", checkpoint_dir=tmp_path)
    else:
        run = resilient.ResilientFit(model, checkpoint_dir=tmp_path)
        history = run.fit(x, y, note="mine")
    assert model.told == {"epochs": 3, "note": "mine"}
    assert len(history.epoch) == 3


def test_keras_parameters_may_be_passed_by_position(tmp_path: Any) -> None:
    """As in ``model.fit(x, y, batch_size, epochs, verbose)``."""
    x, y = np.zeros((16, 2), "float32"), np.zeros((16, 1), "float32")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = resilient.fit(model, x, y, 8, 2, 0, checkpoint_dir=tmp_path)
    assert history.epoch == [0, 1]
    assert history.params["steps"] == 2
