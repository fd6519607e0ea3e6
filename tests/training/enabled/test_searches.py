"""A search begins again with the trials that it had; shown with a small KerasTuner."""

import json
import random
import shutil
import sys
import types
from pathlib import Path
from typing import ClassVar

import keras
import numpy as np
import pytest
from support import fitting
from support.fitting import Interrupt

import resilient
from resilient import CheckpointMismatchError, CheckpointReadError
from resilient.training.enabled import calls
from resilient.training.enabled.projects import MARK

pytestmark = [
    pytest.mark.spread,
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


class Killed(BaseException):
    """Ends a search as a kill does, but for what is in memory."""


def library():
    """What KerasTuner does with seeds, files and errors."""

    class Oracle:
        def __init__(self, seed=None, max_trials=3):
            self.seed = seed or random.randint(1, 10_000)
            self._seed_state, self.max_trials, self.trials = self.seed, max_trials, {}

        def create_trial(self):
            rates = random.Random(self._seed_state)
            self._seed_state += 1
            return f"{len(self.trials)}", rates.uniform(0.01, 0.1)

    class BaseTuner:
        failed: ClassVar[list[str]] = []

        def __init__(
            self,
            oracle,
            hypermodel=None,
            directory=None,
            project_name=None,
            overwrite=False,
        ):
            self.oracle, self.hypermodel = oracle, hypermodel
            self.project = Path(directory or ".", project_name or "untitled_project")
            if overwrite and self.project.exists():
                shutil.rmtree(self.project)
            self.project.mkdir(parents=True, exist_ok=True)
            if (self.project / "tuner0.json").exists():
                for path in sorted(self.project.glob("trial_*/trial.json")):
                    oracle.trials[path.parent.name[6:]] = json.loads(path.read_text())
                state = json.loads((self.project / "oracle.json").read_text())
                oracle._seed_state = state

        def search(self, **given):
            while len(self.oracle.trials) < self.oracle.max_trials:
                name, rate = self.oracle.create_trial()
                try:
                    found = [rate, self.run_trial(name, rate, **given)]
                except Exception as error:
                    self.failed.append(type(error).__name__)
                    found = [rate, "inf"]
                self.oracle.trials[name] = found
                (self.project / f"trial_{name}" / "trial.json").write_text(
                    json.dumps(found)
                )
                (self.project / "oracle.json").write_text(
                    json.dumps(self.oracle._seed_state)
                )
                (self.project / "tuner0.json").write_text("{}")

        def run_trial(self, name, rate, callbacks, **given):
            where = self.project / f"trial_{name}"
            where.mkdir(exist_ok=True)
            net = self.hypermodel(rate)
            save = Save(where / "weights.npy")
            history = net.fit(**given, callbacks=[*callbacks, save])
            return history.history["loss"][-1]

        def best(self):
            losses = {name: found[1] for name, found in self.oracle.trials.items()}
            name = min(losses, key=lambda name: float(losses[name]))
            return np.load(self.project / f"trial_{name}" / "weights.npy")

    module = types.ModuleType("keras_tuner")
    module.Oracle, base = Oracle, types.SimpleNamespace(BaseTuner=BaseTuner)
    module.engine = types.SimpleNamespace(base_tuner=base)
    return module


class Save(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.where = [path]

    def on_epoch_end(self, epoch, logs=None):
        np.save(self.where[0], self.model.get_weights()[0])

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Forgetting(set):
    def add(self, left):
        pass


@pytest.fixture
def tuners(monkeypatch):
    """``keras_tuner``; each block of ``enabled`` is as in a process of its own."""
    found = library()
    monkeypatch.setattr(calls, "_left", Forgetting())
    monkeypatch.setitem(sys.modules, "keras_tuner", found)
    return found


class Kill(Interrupt):
    """In a batch of all fits of a program together."""

    def __init__(self, at=None):
        super().__init__()
        self.left = at

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if len(self._seen) == self.left:
            raise Killed


def net_of(rate):
    net = keras.Sequential(fitting.layers())
    net.compile(keras.optimizers.Adam(rate), "mse", run_eagerly=True)
    return net


def searched(tuners, where, kill=None, overwrite=False, net=net_of, **oracle):
    """Make a tuner and let it search; its trials, best weights, batches trained."""
    base = tuners.engine.base_tuner.BaseTuner
    tuner = base(tuners.Oracle(**oracle), net, where, "p", overwrite=overwrite)
    seen = Kill(kill)
    tuner.search(**fitting.arguments(epochs=2, callbacks=[seen]))
    return tuner.oracle.trials, tuner.best().tolist(), len(seen.seen)


STEPS = 2 * fitting.STEPS


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kill", [3, STEPS + 3, None])
def test_a_search_ends_as_if_it_had_not_been_interrupted(
    tuners, tmp_path, kill, overwrite
):
    """Also one that had finished; the weights of earlier trials are still there."""
    keras.utils.set_random_seed(7)
    expected = searched(tuners, tmp_path / "alone")
    after = fitting.random_state()

    def program(kill):
        with resilient.enabled(tmp_path / "runs", save_freq=2):
            return searched(tuners, tmp_path / "ours", kill, overwrite)

    keras.utils.set_random_seed(7)
    if kill is None:
        assert program(None) == expected
    else:
        with pytest.raises(Killed):
            program(kill)
    fitting.other_seed()
    *found, trained = program(None)
    assert found == list(expected[:2])
    assert trained <= (0 if kill is None else 3 * STEPS - kill + 2)
    assert fitting.random_state() == after


def test_tuners_that_overwrite_each_other(tuners, tmp_path):
    """What an earlier one left is there again where the program comes to it."""

    def program(kill=None):
        with resilient.enabled(tmp_path / "runs", save_freq=2):
            first = searched(tuners, tmp_path, overwrite=True, seed=1)
            second = searched(tuners, tmp_path, kill, overwrite=True, seed=2)
        return first[:2], second[:2]

    with pytest.raises(Killed):
        program(STEPS + 3)
    found = program()
    assert found[0] != found[1]
    assert program() == found
    assert len(list(tmp_path.glob("p*"))) == 2


def test_a_project_of_others_is_left_alone(tuners, tmp_path):
    """Its search goes on in it, once: the trials that it began with are then gone."""
    trials, _, _ = searched(tuners, tmp_path, max_trials=2, seed=3)
    with resilient.enabled(tmp_path / "runs"):
        more, _, trained = searched(tuners, tmp_path, max_trials=3, seed=3)
    assert trained == STEPS
    assert list(more.items())[:2] == list(trials.items())
    refused = pytest.raises(CheckpointMismatchError, match="has changed since")
    with resilient.enabled(tmp_path / "runs"), refused:
        searched(tuners, tmp_path, max_trials=3, seed=3)
    assert len(list(tmp_path.glob("p/trial_*/trial.json"))) == 3
    assert not (tmp_path / "p" / MARK).exists()


def test_a_second_tuner_that_reads_what_the_first_found(tuners, tmp_path):
    def program(kill=None):
        with resilient.enabled(tmp_path / "runs", save_freq=2):
            first = searched(tuners, tmp_path, seed=3)
            second = searched(tuners, tmp_path, kill, seed=3, max_trials=5)
        return first[:2], second[:2]

    with pytest.raises(Killed):
        program(STEPS + 3)
    found = program()
    assert list(found[0][0].items()) == list(found[1][0].items())[:3]
    assert len(found[1][0]) == 5
    assert program() == found


def test_a_project_that_is_gone(tuners, tmp_path):
    with resilient.enabled(tmp_path / "runs"):
        searched(tuners, tmp_path)
    shutil.rmtree(tmp_path / "p")
    (tmp_path / "p" / "trial_7").mkdir(parents=True)
    mine = tmp_path / "p" / "trial_7" / "trial.json"
    mine.write_text("{}")
    refused = pytest.raises(CheckpointMismatchError, match="is missing, or was")
    with resilient.enabled(tmp_path / "runs"), refused:
        searched(tuners, tmp_path, overwrite=True)
    assert mine.exists()


@pytest.mark.parametrize("changed", [{"run": "../x"}, {"projects": ["../x-1"]}])
def test_a_file_that_names_other_directories(tuners, tmp_path, changed):
    with resilient.enabled(tmp_path / "runs"):
        searched(tuners, tmp_path)
    path = tmp_path / "runs" / "fits.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    refused = pytest.raises(CheckpointReadError, match="cannot be read")
    with resilient.enabled(tmp_path / "runs"), refused:
        searched(tuners, tmp_path)


def test_errors_of_ours_end_the_search(tuners, tmp_path):
    with resilient.enabled(tmp_path / "runs"):
        searched(tuners, tmp_path)

    def other(rate):
        return net_of(2 * rate)

    refused = pytest.raises(CheckpointMismatchError, match="settings of its model")
    with resilient.enabled(tmp_path / "runs"), refused:
        searched(tuners, tmp_path, net=other)


def test_a_trial_that_diverges_has_failed(tuners, tmp_path):
    def diverging(rate):
        net = net_of(rate)
        if rate < 0.05:
            net.set_weights([np.full_like(each, np.nan) for each in net.get_weights()])
        return net

    with resilient.enabled(tmp_path / "runs", on_nan="stop"):
        trials, _, _ = searched(tuners, tmp_path, net=diverging, seed=2, max_trials=6)
    failed = tuners.engine.base_tuner.BaseTuner.failed
    assert failed == ["DivergedError"] * len(failed)
    assert 0 < len(failed) < len(trials) == 6


def with_other_oracle(tuners):
    def __init__(self, seed=None, max_trials=3):
        self.seed = self.state = random.randint(1, 10_000)
        self._seed_state, self.max_trials, self.trials = self.seed + 1, max_trials, {}

    tuners.Oracle = type("Oracle", (tuners.Oracle,), {"__init__": __init__})


def with_other_tuner(tuners):
    class Other(tuners.engine.base_tuner.BaseTuner):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    tuners.engine.base_tuner.BaseTuner = Other


@pytest.mark.parametrize("change", [with_other_oracle, with_other_tuner])
def test_another_kerastuner_is_refused_as_before(tuners, tmp_path, change):
    change(tuners)
    with pytest.raises(Killed), resilient.enabled(tmp_path / "runs", save_freq=2):
        searched(tuners, tmp_path, STEPS + 3)
    refused = pytest.raises(CheckpointMismatchError, match="Call 1 of fit is not what")
    with resilient.enabled(tmp_path / "runs"), refused:
        searched(tuners, tmp_path)


@pytest.mark.parametrize("name", ["Oracle", "engine"])
def test_a_kerastuner_without_a_name_that_is_wrapped(tuners, tmp_path, name):
    """It works as it does without us, but for the order of fits."""
    whole = types.SimpleNamespace(**vars(tuners))
    delattr(tuners, name)
    with pytest.raises(Killed), resilient.enabled(tmp_path / "runs", save_freq=2):
        searched(whole, tmp_path, STEPS + 3)
    with resilient.enabled(tmp_path / "runs"):
        if name == "engine":  # which takes our error for failed trials
            searched(whole, tmp_path)
            assert "CheckpointMismatchError" in whole.engine.base_tuner.BaseTuner.failed
        else:
            with pytest.raises(CheckpointMismatchError, match="is not what"):
                searched(whole, tmp_path)


def test_where_several_processes_search_nothing_is_done(tuners, tmp_path, monkeypatch):
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "tuner1")
    with resilient.enabled(tmp_path / "runs"):
        searched(tuners, tmp_path)
    assert not (tmp_path / "p" / MARK).exists()
