"""Two Ray Train workers; Ray restarts both when one dies.

    python examples/ray_workers.py
    python examples/ray_workers.py --checkpoint-dir runs/b --kill-worker 1 --at-step 20

Needs `pip install "ray[train]"`. The second command kills a worker (SIGKILL) in the
middle of an epoch: Ray restarts both, and they resume and print the same digest as
with the first command. It trains what multi_worker.py trains, on the backend that
KERAS_BACKEND names.

To stop it, send it a SIGTERM (as `ray job stop` does) or touch the file `stop` in the
checkpoint directory. The same command continues from there.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import ray
import ray.train

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
# For the workers. If JAX has GPUs or TPUs, leave out its platform.
SETTINGS = {"KERAS_BACKEND": BACKEND, "JAX_PLATFORMS": "cpu"}


def train(arguments: argparse.Namespace) -> None:
    """What each worker runs, from the top after each restart."""
    from multi_worker import KillAt, digest, make_model, meet, training_data
    from tell_ray import TellRay

    import resilient

    directory: Path = arguments.checkpoint_dir
    resilient.deterministic(seed=7, threads=1)
    scope, index, workers = meet(connected=True)
    with scope:
        model = make_model()
    tell = TellRay(directory)
    doomed = index == arguments.kill_worker
    try:
        resilient.fit(
            model,
            **training_data(index, workers),
            epochs=arguments.epochs,
            callbacks=[tell, KillAt(doomed, arguments.at_step, directory)],
            verbose=2 if index == 0 else 0,
            checkpoint_dir=directory,
            save_freq=arguments.save_freq,
            on_event=tell.on_event,
        )
    except resilient.Preempted as stopped:
        if stopped.reason != "stop file":
            raise  # for Ray a failure, after which it starts the workers again
        print(f"worker {index} of {workers}: stopped")
    else:
        print(f"worker {index} of {workers}: digest {digest(model)}")


def trainer(arguments: argparse.Namespace) -> Any:
    """Ray's trainer for the backend."""
    options = {
        "train_loop_config": arguments,
        "scaling_config": ray.train.ScalingConfig(num_workers=2),
        "run_config": ray.train.RunConfig(
            name=arguments.checkpoint_dir.name,
            storage_path=str(arguments.checkpoint_dir.parent / "ray"),
            worker_runtime_env={"env_vars": SETTINGS},
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    }
    if BACKEND == "tensorflow":
        from ray.train.tensorflow import TensorflowTrainer

        return TensorflowTrainer(train, **options)
    if BACKEND == "torch":
        from ray.train.torch import TorchTrainer

        return TorchTrainer(train, **options)
    from ray.train.v2.jax import JaxConfig, JaxTrainer

    # For GPUs and TPUs, ScalingConfig(use_gpu=True) or use_tpu=True says it. On CPUs
    # Ray does not connect JAX's processes unless it is told that there are GPUs.
    return JaxTrainer(train, jax_config=JaxConfig(use_gpu=True), **options)


def main() -> None:
    """Train in a running Ray cluster, or start one on this machine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("runs/ray"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save-freq", type=int, default=8, help="batches")
    parser.add_argument("--kill-worker", type=int, metavar="INDEX")
    parser.add_argument("--at-step", type=int, default=20)
    arguments = parser.parse_args()
    # Workers run in other directories, and in a cluster on other machines.
    arguments.checkpoint_dir = arguments.checkpoint_dir.absolute()
    arguments.checkpoint_dir.mkdir(parents=True, exist_ok=True)

    if "RAY_ADDRESS" in os.environ:
        ray.init()  # the cluster of that address
    else:
        small = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
        ray.init("local", num_cpus=2, **small)
    stop = arguments.checkpoint_dir / "stop"
    signal.signal(signal.SIGTERM, lambda *_: stop.touch())
    result = trainer(arguments).fit()
    print("Ray's newest metrics:", result.metrics)
    print("Ray's newest checkpoint:", result.checkpoint)


if __name__ == "__main__":
    main()
