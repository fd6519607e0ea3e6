"""What runs trials, and keeps them in a project."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np

from keras_tuner.errors import FatalError


class Save(keras.callbacks.Callback):
    """Writes weights at each epoch's end."""

    def __init__(self, path):
        super().__init__()
        self.where = [path]

    def on_epoch_end(self, epoch, logs=None):
        np.save(self.where[0], self.model.get_weights()[0])

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class BaseTuner:
    """Reloads its project where ``tuner0.json`` is, if it is not to be overwritten."""

    def __init__(
        self,
        oracle,
        hypermodel=None,
        directory=None,
        project_name=None,
        overwrite=False,
    ):
        self.oracle, self.hypermodel, self.failed = oracle, hypermodel, []
        self.project = Path(directory or ".", project_name or "untitled_project")
        if overwrite and self.project.exists():
            shutil.rmtree(self.project)
        if (self.project / "tuner0.json").exists():
            found = json.loads((self.project / "tuner0.json").read_text())
            oracle.drawn, oracle.trials = found["drawn"], found["trials"]

    def search(self, **given):
        while len(self.oracle.trials) < self.oracle.max_trials:
            name, rate = self.oracle.create_trial()
            try:
                found = [rate, self.run_trial(name, rate, **given)]
            except FatalError:
                raise
            except Exception as error:
                self.failed.append(type(error).__name__)
                found = [rate, "inf"]
            self.oracle.trials[name] = found
            state = {"drawn": self.oracle.drawn, "trials": self.oracle.trials}
            (self.project / "tuner0.json").write_text(json.dumps(state))

    def run_trial(self, name, rate, callbacks, **given):
        net = self.hypermodel(rate)
        self.project.mkdir(parents=True, exist_ok=True)
        save = Save(self.project / f"{name}.npy")
        history = net.fit(**given, callbacks=[*callbacks, save])
        return history.history["loss"][-1]

    def best(self):
        losses = {name: found[1] for name, found in self.oracle.trials.items()}
        name = min(losses, key=lambda name: float(losses[name]))
        return np.load(self.project / f"{name}.npy")
