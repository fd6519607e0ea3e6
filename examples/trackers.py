"""One run in W&B, MLflow or TensorBoard, however often the training is killed.

    python trackers.py wandb --checkpoint-dir runs/tracked

Kill it, and run the same command again.
"""

import argparse
import os
import signal
import time

import keras
import numpy as np

import resilient


class Tracker(keras.callbacks.Callback):
    """Logs each batch and each epoch by step; the checkpoint keeps the run's id."""

    def __init__(self):
        super().__init__()
        self.id, self.step, self.begun = None, 0, False

    def state_dict(self):
        return {"id": self.id, "step": self.step}

    def load_state_dict(self, state):
        self.id, self.step, self.begun = state["id"], state["step"], False

    def on_train_batch_begin(self, batch, logs=None):
        if not self.begun:  # not in on_train_begin: now the state is back
            self.begun = True
            self.begin()

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self.log({f"batch/{name}": value for name, value in logs.items()})

    def on_epoch_end(self, epoch, logs=None):
        self.log({f"epoch/{name}": value for name, value in logs.items()})


class Wandb(Tracker):
    """With the same id, W&B continues the run.

    It writes every 15 seconds, and a kill loses what is not written. So the checkpoint
    keeps what was logged in the last minute, and a resume logs it again.
    """

    recent = ()

    def state_dict(self):
        return super().state_dict() | {"recent": list(self.recent)}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.recent = state["recent"]

    def begin(self):
        import wandb

        self.run = wandb.init(project="digits", id=self.id, resume="allow")
        self.id = self.run.id
        again, self.recent = self.recent, []
        for _, step, values in again:
            self.send(step, values)

    def log(self, values):
        self.send(self.step, {name: float(value) for name, value in values.items()})

    def send(self, step, values):
        now = time.time()
        while self.recent and self.recent[0][0] < now - 60:
            del self.recent[0]
        self.recent.append([now, step, values])
        self.run.log(values, step=step)

    def on_train_end(self, logs=None):
        if self.begun:
            self.run.finish()


class Mlflow(Tracker):
    """MLflow keeps everything it receives, so no step is logged twice."""

    def begin(self):
        import mlflow

        self.client = mlflow.MlflowClient()
        if self.id is None:
            experiment = mlflow.set_experiment("digits").experiment_id
            self.id = self.client.create_run(experiment).info.run_id
        # Steps after the checkpoint, which the previous attempt already logged
        # identically.
        self.logged = {
            name: max(m.step for m in self.client.get_metric_history(self.id, name))
            for name in self.client.get_run(self.id).data.metrics
        }

    def log(self, values):
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        new = [n for n in values if self.logged.get(n, -1) < self.step]
        metrics = [Metric(name, float(values[name]), now, self.step) for name in new]
        self.client.log_batch(self.id, metrics=metrics)

    def on_train_end(self, logs=None):
        if self.begun:
            self.client.set_terminated(self.id)


class TensorBoard(Tracker):
    """With PyTorch's writer; Keras's own callback needs none of this."""

    def begin(self):
        from torch.utils.tensorboard import SummaryWriter

        resumed = resilient.resumed_from()
        next_step = 1 if resumed is None else resumed.step + 1
        self.writer = SummaryWriter("logs", purge_step=next_step)

    def log(self, values):
        for name, value in values.items():
            self.writer.add_scalar(name, value, self.step)

    def on_train_end(self, logs=None):
        if self.begun:
            self.writer.close()


def main():
    """Train with one of the trackers."""
    parser = argparse.ArgumentParser(description=__doc__)
    trackers = {"wandb": Wandb, "mlflow": Mlflow, "tensorboard": TensorBoard}
    parser.add_argument("tracker", choices=trackers)
    parser.add_argument("--checkpoint-dir", default="runs/tracked")
    parser.add_argument("--kill-at", type=int, help="a step after which it dies")
    options = parser.parse_args()

    class Die(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if tracker.step == options.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(1).normal(size=(320, 8)).astype("float32")
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    tracker = trackers[options.tracker]()
    resilient.fit(
        model,
        x,
        x.sum(axis=1),
        epochs=3,
        validation_split=0.1,
        verbose=2,
        callbacks=[tracker, Die()],
        checkpoint_dir=options.checkpoint_dir,
        save_freq=4,
    )


if __name__ == "__main__":
    main()
