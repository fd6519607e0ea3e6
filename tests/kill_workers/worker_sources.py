"""Every source of data in several processes: one fit after another.

    python worker_sources.py DIRECTORY GROUP [KILL [CASE ...]]

Of the cases of a GROUP ("own" of the backend, "more" of them, or "others"), each
trains in ``DIRECTORY/<case>``. If no CASE is named, all are, and Keras trains each
alone first (``plain``). In the middle of it process 0 copies that directory to
``DIRECTORY/killed/<case>``: what a SIGKILL at that moment would leave. Every process
ends itself by SIGKILL in the middle of the case ``KILL``. Prints a line of JSON for
each case.
"""

import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

import keras
from own_data import BACKEND, OWN_DATA
from support.waited import wait_for_each_save

import resilient
from resilient.errors import ResilientError

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
SAMPLES, BATCH, EPOCHS = 48, 8, 3
COPIED_AT, KILLED_AT = 9, 15  # of 18 batches; there is a checkpoint every 2


def made_model():
    """Its weights are sums of few bits: exact in float32, in every order.

    They depend on the order of batches, for the learning rate changes.
    """
    rates = keras.optimizers.schedules.PiecewiseConstantDecay(
        [2, 4, 7, 11, 14], [0.25, 0.5, 0.125, 0.25, 0.5, 0.125]
    )
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")]
    )
    model.compile(keras.optimizers.SGD(rates), loss=product, metrics=[matches])
    return model


def product(y_true, y_pred):
    return keras.ops.mean(y_true * y_pred, axis=-1)


def matches(y_true, y_pred):
    """How often the signs are the same."""
    return keras.ops.mean(keras.ops.cast(y_true * y_pred > 0, "float32"), axis=-1)


class Watched(keras.callbacks.Callback):
    """Copies the directory in the middle of training, or kills this process."""

    def __init__(self, directory, kill):
        super().__init__()
        self._directory, self._kill = directory, kill

    def on_train_batch_end(self, batch, logs=None):
        step = int(held(self.model.optimizer.iterations))
        if step == KILLED_AT and self._kill:
            # All at once: who is left over might still be in its step, and fail.
            here = self._directory.parent / "killing"
            here.mkdir(exist_ok=True)
            (here / str(RANK)).touch()
            while len(list(here.iterdir())) < WORLD:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        copy = self._directory.parent / "killed" / self._directory.name
        if step == COPIED_AT and RANK == 0 and not copy.exists():
            shutil.copytree(self._directory, copy)


def digest(model):
    found = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        found.update(held(variable).tobytes())
    return found.hexdigest()


def held(variable):
    """What this process holds of a variable."""
    if BACKEND == "tensorflow":  # reading it as a whole may be a collective
        (component,) = variable.value.values
        return component.numpy()
    return keras.ops.convert_to_numpy(variable)


def told(train, make, model, **options):
    """What training returned, or the error."""
    seed, arguments = make()
    if seed is not None:
        keras.utils.set_random_seed(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            history = train(model, **arguments, **options).history
        except (ResilientError, ValueError, NotImplementedError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
    said = [str(w.message) for w in caught if "rocess" in str(w.message)]
    history = {k: [float(v).hex() for v in values] for k, values in history.items()}
    return {"history": history, "model": digest(model), "warnings": said}


def plainly(model, **arguments):
    if BACKEND == "tensorflow":
        from resilient.keras_internals.multi_worker import corrected
    around = corrected(model) if BACKEND == "tensorflow" else nullcontext()
    with around:
        return model.fit(epochs=EPOCHS, verbose=0, **arguments)


def run(directory, name, case, kill, *, compare):
    make, scope = case
    mine, result = directory / name, {}
    if compare:
        with scope():
            result["plain"] = told(plainly, make, made_model())
    events = []
    with scope():
        model = made_model()

        watched = Watched(mine, kill)
        ours = told(
            lambda model, callbacks=(), **rest: resilient.fit(
                model,
                checkpoint_dir=mine,
                save_freq=2,
                epochs=EPOCHS,
                verbose=0,
                callbacks=[*callbacks, watched],
                on_event=events.append,
                **rest,
            ),
            make,
            model,
        )
    restored = [e["step"] for e in events if e["event"] == "restored"]
    result |= {"ours": ours, "restored": restored}
    print("\n" + json.dumps([name, result]), flush=True)


def module():
    """The cases of these processes."""
    kind = "own" if OWN_DATA else BACKEND
    return importlib.import_module(f"worker_sources_{kind}")


def main(directory, group, kill="", *names):
    # A copy holds the same checkpoints each time.
    wait_for_each_save()
    directory = Path(directory)
    cases = module().cases(directory, group)
    for name in names or cases:
        run(directory, name, cases[name], kill == name, compare=not names)


if __name__ == "__main__":
    main(*sys.argv[1:])
