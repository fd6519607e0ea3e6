"""``keep=best(...)`` of a metric that is not logged: an error, and nothing is lost."""

import math

import keras
import numpy as np
import pytest
from support import fitting

import resilient
from resilient import best, every, latest
from resilient.policies.keep import unlogged

pytestmark = [
    pytest.mark.waits,
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

WRONG = best(1, monitor="val_acc", mode="max")


def model(**given):
    return fitting.model(metrics=["mae"], **given)


def fit(directory, keep=WRONG, net=None, **given):
    given = {"validation_data": fitting.data(8)} | given
    return fitting.fit(net or model(), directory, keep=keep, save_freq="epoch", **given)


@pytest.mark.everywhere
def test_an_unknown_metric_is_an_error_when_the_first_epoch_ends(tmp_path):
    with pytest.raises(ValueError, match="keep=best") as error:
        fit(tmp_path, best(1, monitor="val_mea", mode="min"))
    assert str(error.value) == (
        'keep=best(...) monitors "val_mea", which the epoch did not log.\n'
        "Received: metrics loss, mae, val_loss, val_mae\n"
        "Name one of these, and run again."
    )
    assert fitting.steps(tmp_path) == [6]


def test_the_corrected_script_goes_on_exactly(tmp_path):
    with pytest.raises(ValueError, match="val_acc"):
        fit(tmp_path)
    fitting.other_seed()
    net = model(seed=77)
    history = fit(tmp_path, best(1, monitor="val_mae"), net)
    expected = model()
    plain = expected.fit(**fitting.arguments(validation_data=fitting.data(8)))
    fitting.assert_equal(expected, net)
    assert history.history == plain.history


def test_a_resume_with_an_unknown_metric_deletes_nothing(tmp_path):
    """Not even in the middle of its first epoch."""
    fit(tmp_path, latest(9), epochs=2)
    keep, often = latest(1) | WRONG, every(steps=2) | every(epochs=1)
    given = {"epochs": 3, "validation_data": fitting.data(8)}
    with pytest.raises(ValueError, match="val_acc"):
        fitting.fit(model(), tmp_path, keep=keep, save_freq=often, **given)
    assert fitting.steps(tmp_path) == [6, 12]


def test_a_metric_of_validation_is_waited_for_where_epochs_are_not_validated(tmp_path):
    fit(tmp_path / "right", best(1, monitor="val_loss"), validation_freq=2)
    with pytest.raises(ValueError, match="metrics loss, mae, val_loss, val_mae\n"):
        fit(tmp_path / "wrong", validation_freq=2)
    assert fitting.steps(tmp_path / "wrong")[-1] == 12


def test_without_validation_nothing_is_waited_for(tmp_path):
    with pytest.raises(ValueError, match="Received: metrics loss, mae\n"):
        fit(tmp_path, best(1, monitor="val_loss"), validation_data=None)
    assert fitting.steps(tmp_path) == [6]


class Adding(keras.callbacks.Callback):
    """Adds to the logs, of which Keras gives callbacks a copy."""

    def on_epoch_end(self, epoch, logs=None):
        logs["mine"] = 1.0


def test_what_a_callback_adds_to_the_logs_is_not_among_the_metrics(tmp_path):
    mine = best(1, monitor="mine", mode="max")
    with pytest.raises(ValueError, match='"mine"'):
        fit(tmp_path, mine, callbacks=[Adding()])


def loop(directory, keep, log, epochs=3):
    total = keras.Variable(0.0, trainable=False)
    run = resilient.Run(
        directory, v=total, verbose=0, keep=keep, save_freq=every(epochs=1)
    )
    data = np.arange(4.0)
    for epoch in run.epochs(epochs):
        for _ in run.batches(data, batch_size=2):
            total.assign_add(1.0)
        run.log(**log(epoch))
    return run


@pytest.mark.everywhere
def test_a_loop_is_told_so_too(tmp_path):
    keep = latest(1) | best(1, monitor="loss")
    with pytest.raises(ValueError, match="metrics lose\n"):
        loop(tmp_path, keep, lambda epoch: {"lose": 1.0 + epoch})
    assert fitting.steps(tmp_path) == [2]
    run = loop(tmp_path / "right", keep, lambda epoch: {"loss": 1.0 + epoch})
    assert [each.step for each in run.checkpoints] == [2, 6]


def test_a_loop_may_validate_or_log_in_some_epochs_only(tmp_path):
    def log(epoch):
        return {"loss": 1.0, **({"val_loss": 2.0} if epoch else {})}

    loop(tmp_path / "right", best(1, monitor="val_loss"), log)
    with pytest.raises(ValueError, match="metrics loss, val_loss\n"):
        loop(tmp_path / "wrong", WRONG, log)
    assert fitting.steps(tmp_path / "wrong")[-1] == 4
    loop(tmp_path / "silent", WRONG, lambda epoch: {})


def test_each_metric_has_to_be_seen_once():
    missing = {"loss", "val_a", "val_b"}
    assert unlogged(missing, {}, validates=False) is None
    assert unlogged(missing, {"loss": 1.0}, validates=True) is None
    assert unlogged(missing, {"x": math.nan, "val_a": 1.0}, validates=True) is not None
    assert unlogged(missing, {"x": 1.0, "val_b": 1.0}, validates=True) is None
    assert unlogged(missing, {"x": 1.0, "val_x": 1.0}, validates=False) is None
