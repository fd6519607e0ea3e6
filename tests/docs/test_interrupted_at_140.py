"""The case of Keras's guide: 100 steps an epoch, a save every 30, the end at step 140.

It resumes at step 120, with the samples of batch 121.
"""

import keras
import numpy as np
import pytest

import resilient

STEPS, BATCH, EPOCHS = 100, 4, 2
SEEN: list[
    tuple[int, int, float]
] = []  # (epoch, batch, which samples), of all attempts

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")


class Sample(keras.metrics.Metric):
    """Which samples the last batch had: the least of their numbers."""

    def __init__(self):
        super().__init__(name="sample")
        self.least = self.add_variable((), "zeros", name="least")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.least.assign(keras.ops.min(y_true))

    def result(self):
        return self.least.value


class Interrupt(keras.callbacks.Callback):
    """Ends training after a step of the run, if it gets that far for the first time."""

    def __init__(self, step):
        super().__init__()
        self.last = step

    def state_dict(self):
        return {}  # nor what it has seen

    def load_state_dict(self, state):
        pass

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        SEEN.append((self.epoch, batch, float(logs["sample"])))
        if self.epoch * STEPS + batch + 1 == self.last:
            raise KeyboardInterrupt


def make_model():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=[Sample()])
    return model


def data():
    numbers = np.arange(STEPS * BATCH, dtype="float32")
    return {"x": numbers[:, None] / numbers.size, "y": numbers[:, None]}


def fit(directory, *, last=-1, callbacks=()):
    """Train a new model, by Keras if there is no directory; what was seen, and it."""
    SEEN.clear()
    model = make_model()
    callbacks = [*callbacks, Interrupt(last)]
    options = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, **data()}
    try:
        if directory is None:
            model.fit(**options, callbacks=callbacks)
        else:
            ours = {"checkpoint_dir": directory, "save_freq": 30}
            resilient.fit(model, **options, callbacks=callbacks, **ours)
    except KeyboardInterrupt:
        assert SEEN[-1][:2] == (1, 39)
    return list(SEEN), model


def weights(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(v).tobytes() for v in variables]


@pytest.mark.waits
def test_it_resumes_at_120_with_the_samples_of_batch_121(tmp_path):
    """The same samples in the same order as uninterrupted, and the same bytes."""
    alone, expected = fit(None)
    before, _ = fit(tmp_path, last=140)
    assert before == alone[:140]
    kept = resilient.ResilientFit(expected, checkpoint_dir=tmp_path).checkpoints
    assert [checkpoint.step for checkpoint in kept] == [60, 90, 120]
    keras.utils.set_random_seed(99)
    after, model = fit(tmp_path)
    assert after[0][:2] == (1, 20)
    assert after == alone[120:]
    assert weights(model) == weights(expected)


def test_backup_and_restore_goes_back_to_the_epochs_start_with_the_weights_of_120(
    tmp_path,
):
    """So 20 batches are trained twice: a reason for this library, and for its pages."""
    backup = lambda: keras.callbacks.BackupAndRestore(tmp_path, save_freq=30)  # noqa: E731
    fit(None, last=140, callbacks=[backup()])
    after, model = fit(None, callbacks=[backup()])
    assert after[0][:2] == (1, 0)
    assert int(model.optimizer.iterations.numpy()) == 120 + STEPS
