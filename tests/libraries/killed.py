"""Run a program that knows nothing of us, and kill it at some moments.

    killed.py KILLS COUNT PROGRAM [ARGUMENTS ...]

Of its attempts (counted in the file COUNT), the n-th is killed where the n-th of KILLS
says: after as many batches; ``fit2``: after the second fit, whether that trained or
not; ``json5``: while KerasTuner writes a file for the fifth time. Those that are left
run to the end. The program finds the number of its attempt in ``ATTEMPT``.
"""

import functools
import json
import os
import runpy
import signal
import sys
from pathlib import Path

import keras

kills, count = sys.argv[1].split(","), Path(sys.argv[2])
attempt = int(count.read_text()) if count.exists() else 0
count.write_text(str(attempt + 1))
os.environ["ATTEMPT"] = str(attempt)
kill = dict(enumerate(kills)).get(attempt, "")
ended = keras.callbacks.CallbackList.on_train_batch_end
fit = keras.Model.fit


def has_come(what):
    """Whether the moment is now."""
    # Counted where no callback refers to: that would be state of the training.
    seen = int(os.environ.get(f"SEEN {what}", "0")) + 1
    os.environ[f"SEEN {what}"] = str(seen)
    return kill == f"{what}{seen}"


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def batch_ended(self, *args, **kwargs):
    ended(self, *args, **kwargs)
    if has_come(""):
        die()


@functools.wraps(fit)  # BayesFlow looks at its arguments
def fitted(self, *args, **kwargs):
    history = fit(self, *args, **kwargs)
    if has_come("fit"):
        die()
    return history


def written(path, content):
    text = json.dumps(content)
    if has_come("json"):
        Path(path).write_text(text[: len(text) // 2])
        die()
    Path(path).write_text(text)
    return text


keras.Model.fit = fitted
if kill.startswith("json"):
    import keras_tuner.src.utils

    keras_tuner.src.utils.save_json = written
keras.callbacks.CallbackList.on_train_batch_end = batch_ended
sys.argv[:] = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
