"""The public API as a user's type checker sees it.

Checked by pyright and mypy, never run. Each call that both must object to says so.
"""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type

import keras
import numpy as np

import resilient
from resilient import best, every, latest, one_per


class Curriculum:
    """A user's own state."""

    def state_dict(self) -> dict[str, Any]:
        return {"level": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def on_event(event: dict[str, Any]) -> None:
    print(event["event"])


model: keras.Model = keras.Sequential([keras.layers.Dense(1)])
x, y = np.zeros((8, 2)), np.zeros((8, 1))

assert_type(
    resilient.fit(model, x, y, epochs=2, checkpoint_dir="runs/a"),
    keras.callbacks.History,
)
resilient.fit(model, x, y, checkpoint_dir=Path("runs/a"), save_freq=100, keep=2)
resilient.fit(
    model,
    x,
    y,
    checkpoint_dir="runs/a",
    save_freq=resilient.adaptive(overhead=0.01) | every(steps=500),
    preemption=resilient.Preemption(
        signals=[signal.SIGTERM], grace_period=100, notices=[resilient.clouds.aws()]
    ),
    on_nan=resilient.Rollback(steps=50, skip=200),
    loss_spike=5,
)
resilient.fit(model, x, y, checkpoint_dir="runs/a", preemption=None, on_nan="stop")
config = resilient.RunConfig(model_dir=Path("runs/a"), save_checkpoints_secs=90)
resilient.fit(model, x, y, **config.options())
resilient.fit(
    model,
    x,
    y,
    checkpoint_dir="runs/a",
    save_freq=every(steps=500) | every(minutes=10),
    keep=latest(3) | best(1, monitor="val_loss", mode="min") | one_per(hours=6),
    resume="must",
    stateful={"curriculum": Curriculum()},
    on_event=on_event,
    on_save_error="warn",
)
resilient.fit(model, x, y, checkpoint_dir="runs/a", resume=1200)
resilient.fit(model, checkpoint_dir="a", keep=best(1, "val_loss"), resume="best")
resilient.fit(
    model,
    x,
    checkpoint_dir="runs/a",
    on_data_change="warn",
    replay_data=True,
    keep_compiled=False,
    on_inexact="raise",
)
resilient.fit(model, x, checkpoint_dir="a", allow={"batch_size", "data"})
resilient.fit(model, x, checkpoint_dir="a", on_data_change="fast")  # type: ignore[arg-type]
resilient.fit(model, x, checkpoint_dir="a", on_inexact="fast")  # type: ignore[arg-type]
resilient.fit(model, checkpoint_dir="a", on_nan="retry")  # type: ignore[arg-type]
resilient.fit(model, x, y)  # type: ignore[call-arg]  # no checkpoint_dir
resilient.fit(model, checkpoint_dir="a", resume="often")  # type: ignore[arg-type]
resilient.fit(model, checkpoint_dir="a", save_freq="batch")  # type: ignore[arg-type]
resilient.fit(model, x, y, 32, 10, "auto", checkpoint_dir="a")
resilient.fit(
    model,
    x,
    callbacks=[keras.callbacks.EarlyStopping(), keras.callbacks.CSVLogger("log.csv")],
    class_weight={0: 1.0, 1: 2.5},
    shuffle="batch",
    validation_data=(x, y),
    validation_freq=[1, 5],
    verbose=False,
    checkpoint_dir="a",
)
resilient.fit(model, x, y, epoch=3, checkpoint_dir="a")  # type: ignore[call-arg]
resilient.fit(model, x, y, epochs="3", checkpoint_dir="a")  # type: ignore[arg-type]
resilient.fit(model, x, y, 32, "3", checkpoint_dir="a")  # type: ignore[arg-type]
resilient.fit(model, x, verbose="no", checkpoint_dir="a")  # type: ignore[arg-type]
resilient.fit(model, x, checkpoint_dir="a", start_from={"m": "b"})  # type: ignore[arg-type]
resilient.fit(model=model, x=x, y=y, checkpoint_dir="a", start_from=Path("b"))
resilient.deterministic()
resilient.deterministic(7, threads=4)
resilient.deterministic("7")  # type: ignore[arg-type]
resilient.deterministic(7, 4)  # type: ignore[call-arg]
latest("3")  # type: ignore[arg-type]

run = resilient.ResilientFit(model, checkpoint_dir="runs/a", save_freq="epoch")
resilient.ResilientFit(model=model, checkpoint_dir="a", keep="3")  # type: ignore[arg-type]
resilient.ResilientFit(model, checkpoint_dir="a", sav_freq=3)  # type: ignore[call-arg]
resilient.ResilientFit(model, save_freq="epoch")  # type: ignore[call-arg]
assert_type(run, resilient.ResilientFit)
assert_type(run.fit(x, y, epochs=2), keras.callbacks.History)
run.fit(x, y, epoch=2)  # type: ignore[call-arg]
run.fit(x, y, batch_size="32")  # type: ignore[arg-type]
run.fit(x, y, checkpoint_dir="a")  # type: ignore[call-arg]
run.save()
assert_type(run.restore().step, int)
assert_type(run.restore(step=3).path, Path)
assert_type([checkpoint.step for checkpoint in run.checkpoints], list[int])
assert_type(run.goodput.share, float)
newest = run.latest
if newest is not None:
    assert_type(newest.metrics, Mapping[str, float])

with resilient.Checkpoints("runs/c", model.variables, keep=2) as checkpoints:
    assert_type(checkpoints.restore(), int)
    assert_type(checkpoints.save(5).step, int)

try:
    run.fit(x, y)
except resilient.CheckpointMismatchError as error:
    assert_type(error, resilient.CheckpointMismatchError)
except resilient.Preempted as stop:
    assert_type(stop.saved, bool)
except resilient.ResilientError:
    pass

assert_type(resilient.export("runs/a", "model.keras", step=3, model=model), Path)
resilient.export("runs/a", Path("exported.safetensors"), overwrite=True)
resilient.import_checkpoint("backup", model, checkpoint_dir="runs/b", epoch=2)

with resilient.enabled(directory="runs/e", save_freq="epoch", on_nan="stop"):
    model.fit(x, y)
resilient.enabled("runs/e", on_nan="retry")  # type: ignore[arg-type]
resilient.enabled("runs/e", checkpoint_dir="a")  # type: ignore[call-arg]
resilient.BackupAndRestore(backup_dir="b", delete_checkpoint=False, keep=latest(2))
resilient.BackupAndRestore("b", "epoch", False, True, resume="must")
resilient.BackupAndRestore(save_freq=3)  # type: ignore[call-arg]

by_hand = resilient.Run(
    "runs/d", save_freq=every(steps=100), model=model, state={"n": 1}
)
resilient.Run("runs/e", allow={"config"}, model=model)
resilient.Run("runs/f", start_from={"model": Path("runs/a")}, model=model)
resilient.Run("runs/f", start_from="runs/a", start_layers=".*", model=model)
for epoch, step, batch in by_hand.loop((x, y), epochs=5, batch_size=4):
    assert_type((epoch, step), tuple[int, int])
    by_hand.log(loss=batch[0].mean())
    by_hand.state = {"n": step}
for epoch in by_hand.epochs(5):
    assert_type(epoch, int)
    for number, _ in by_hand.batches((x, y), shuffle="batch"):
        assert_type(number, int)
with by_hand as entered:
    assert_type(entered, resilient.Run)
    entered.advance(2)
    entered.save()
assert_type(by_hand.history["loss"], list[float])
assert_type(by_hand.history.steps("loss"), list[int])
assert_type(by_hand.restore(step=3).step, int)
by_hand.loop((x, y))  # type: ignore[call-arg]  # no epochs
resilient.Run(model=model)  # type: ignore[call-arg]  # no checkpoint_dir
