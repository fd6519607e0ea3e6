"""Run the examples, and record their output for the gallery.

    KERAS_BACKEND=jax python docs/gallery/record.py
    KERAS_BACKEND=torch python docs/gallery/record.py torch_loop

Records a backend's examples, or only the named ones, in `output/`. The commands kill
processes; the output of a killed one ends with "Killed", as in a shell. What depends on
the machine is left out: times, folders, and log lines of TensorFlow, MLflow and Ray.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTPUT = Path(__file__).with_name("output")
# What kills kernels and starts a cluster in the tests does it here, too.
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "engines")]

ALONE = "python examples/{}.py --checkpoint-dir runs/a"
KILLED = "python examples/{}.py --checkpoint-dir runs/b {}"
TWICE = (ALONE, KILLED, KILLED)
SUPERVISED = tuple(f"resilient run --nproc 2 -- {one}" for one in (ALONE, KILLED))

# Paragraphs are commands. W&B's server is not there; what it would get is a directory.
TRACKED = r"""
python examples/{0}.py mlflow --checkpoint-dir runs/m {1}

python examples/{0}.py mlflow --checkpoint-dir runs/m

python -c "import mlflow
(run,) = mlflow.search_runs(experiment_names=['digits'], output_format='list')
history = mlflow.MlflowClient().get_metric_history
print(*[metric.step for metric in history(run.info.run_id, 'batch/loss')])"

WANDB_MODE=offline python examples/{0}.py wandb --checkpoint-dir runs/w {1}

WANDB_MODE=offline python examples/{0}.py wandb --checkpoint-dir runs/w

ls -d wandb/offline-run-*

python examples/{0}.py tensorboard --checkpoint-dir runs/t {1}

python examples/{0}.py tensorboard --checkpoint-dir runs/t

python -c "from tensorboard.backend.event_processing import event_accumulator
events = event_accumulator.EventAccumulator('logs').Reload()
print(*[event.step for event in events.Scalars('batch/loss')])"
"""

# A job that another preempts, and a job of two tasks, one of which is killed.
IN_SLURM = r"""
python examples/digits.py --checkpoint-dir runs/a | grep digest

sbatch --cpus-per-task=1 examples/slurm.sbatch \
    python examples/digits.py --checkpoint-dir runs/b

until grep -qs 'Epoch 3/5' training-1.log; do sleep 0.1; done
sbatch --partition=high --exclusive --output=/dev/null --wrap='sleep 1'

while squeue --noheader | grep -q .; do sleep 1; done
cat training-1.log

resilient run --nproc 2 -- \
    python examples/multi_worker.py --checkpoint-dir runs/c | grep digest

sbatch --cpus-per-task=1 --ntasks=2 --wait examples/slurm.sbatch \
    bash examples/slurm_worker.sh \
    python examples/multi_worker.py --checkpoint-dir runs/d --kill-worker 1

cat training-3.log
"""

# What Kubernetes does to a pod, by hand: SIGTERM, and the same command again.
AS_IN_PODS = r"""
kubernetes-validate --strict examples/kubernetes.yaml examples/kubernetes_workers.yaml

python examples/digits.py --checkpoint-dir runs/a

resilient run -- python examples/digits.py --checkpoint-dir runs/b >pod-1.log 2>&1 &
until grep -q 'Epoch 3/5' pod-1.log; do sleep 0.1; done
kill -TERM $!; wait $!; status=$?; cat pod-1.log; echo "exit status $status"

resilient run -- python examples/digits.py --checkpoint-dir runs/b
"""


def paragraphs(text: str) -> tuple[str, ...]:
    """The commands of a text."""
    return tuple(text.strip().split("\n\n"))


# By backend: the commands to run, in order, and the options for those to be killed.
EXAMPLES = {
    "jax": {
        "demo": (("python examples/demo.py",), ""),
        "digits": (TWICE, "--kill-at 2:17"),
        "jax_loop": (TWICE, "--kill-at 40"),
    },
    "tensorflow": {
        "gan": (TWICE, "--kill-at 40"),
        "shuffled_tf_data": (("python examples/{}.py",), ""),
        "tensorflow_guide": (
            tuple(f"{one} --way after" for one in TWICE),
            "--kill-at 13",
        ),
        "multi_worker": (SUPERVISED, "--kill-worker 1 --at-step 20"),
        "multi_worker_loop": (SUPERVISED, "--kill-worker 1 --at-step 20"),
        "parameter_server": (
            (f"resilient run --dir runs/b -- {KILLED}",),
            "--kill coordinator --at-step 150",
        ),
    },
    "torch": {
        "torch_loop": (TWICE, "--kill-at 40"),
        "notebook": ((), ""),  # no command: its cells are run in a kernel
        "trackers": (paragraphs(TRACKED), "--kill-at 25"),
        "ray_workers": ((ALONE, KILLED), "--kill-worker 1 --at-step 20"),
        "slurm": (paragraphs(IN_SLURM), ""),
        "kubernetes": (paragraphs(AS_IN_PODS), ""),
    },
}
SETTINGS = {
    "COLUMNS": "88",
    "PYTHONUNBUFFERED": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}

# What is left out, line by line, and in lines.
LEFT_OUT = (
    r"(?m)^(WARNING: All log messages before absl|[IWE]\d{4} ).*\n",
    r"(?m)^\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d.*\b(INFO|WARNING)\b.*\n",
    r"(?m)^\((?!RayTrainWorker)\w+( pid=\d+)?\) (?!\[FailurePolicy\]).*\n",
    r"(?<=\)\.) Time: [0-9:]+\.(?= Status: )",
    r" - \d+s - \d+[mu]?s/step",
    r" \d[\d,]* s ago",
    r" Restored in [\d.]+ s\.",
    r"(?m)(?<=Restart \d) in [\d.]+ s(?=\.$)",
    r"(?m)(?<=100%) \d+:\d\d:\d\d$",
    r" \(timestamp: -?[\d.]+\)",  # of TensorBoard's events
)


def ran(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a command; return it as typed, with its output."""
    done = subprocess.run(
        ["bash", "-c", command],  # noqa: S607  # whichever bash there is
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    printed = done.stdout
    if done.returncode == -signal.SIGKILL:
        printed += "Killed\n"
    elif done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{printed}")
    typed = command.replace("\n", "\n> ")
    return f"$ {typed}\n{printed}"


def ran_in_kernels(notebook: Path, folder: Path) -> str:
    """Run a notebook's cells alone; killed; and again. Silent cells are not shown."""
    from support.kernel import kernel

    cells = [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    said = []
    for place, kill in (("alone", False), ("killed", True), ("killed", False)):
        said.append("# A new kernel" + (", which is killed (SIGKILL)" * kill) + "\n")
        with kernel(folder / place) as one:

            def killed(place: str = place, kill=one.kill) -> bool:
                if not list((folder / place).glob("runs/*/step-00000[3-9]*")):
                    return False
                kill()
                return True

            for number, cell in enumerate(cells, 1):
                dies = kill and ".fit(" in cell
                shown = one.outputs(cell, killed if dies else None)
                texts = [
                    each.get("text") or f"{each['data']['text/plain']}\n"
                    for each in shown
                    if "text" in each or "data" in each
                ]
                if texts:
                    typed = cell.strip().replace("\n", "\n   ...: ")
                    said.append(f"In [{number}]: {typed}\n{''.join(texts)}")
                if dies:
                    said[-1] += "Killed\n"
                    break
    return "\n".join(said)


@contextmanager
def slurm(folder: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """A SLURM cluster on this machine; yields what its commands need."""
    from slurm_cluster import cluster

    folder.mkdir()
    with cluster(folder, environment) as found:
        yield found.environment


def cleaned(text: str, home: str) -> str:
    """What was printed, without what depends on the machine or its load."""
    for path in (home, str(ROOT), sys.prefix, sys.base_prefix):
        text = text.replace(f"{path}/", "")
    text = re.sub(r"/tmp/tmp\w+/", "", text)  # noqa: S108  # an example's own folder
    text = re.sub(r"\x1b\[[0-9;]*m|.*\r", "", text)  # colours, progress bars
    for pattern in LEFT_OUT:
        text = re.sub(pattern, "", text)
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node", text)


def record(name: str, commands: tuple[str, ...], options: str) -> None:
    """Run an example in an empty folder, and record its output."""
    own = str(Path(sys.executable).parent)
    path = os.pathsep.join([own, os.environ["PATH"]])
    environment = os.environ | SETTINGS | {"PATH": path}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "examples").symlink_to(ROOT / "examples")
        around = slurm if name == "slurm" else lambda _, given: nullcontext(given)
        with around(folder / "slurm", environment) as given:
            said = [
                ran(one.format(name, options).strip(), folder, given)
                for one in commands
            ]
        if not commands:
            said = [ran_in_kernels(folder / "examples" / "kill_me.ipynb", folder)]
    text = cleaned("\n".join(said), home)
    if text.count("\nKilled\n") > text.count("Resumed at step"):
        raise SystemExit(f"{name}: killed before the first save; record it again")
    OUTPUT.joinpath(f"{name}.txt").write_text(text)


def main(*names: str) -> None:
    """Record this backend's examples, or only the named ones."""
    examples = EXAMPLES[os.environ["KERAS_BACKEND"]]
    for name in names or examples:
        record(name, *examples[name])
        print(name, "recorded")  # noqa: T201  # progress


if __name__ == "__main__":
    main(*sys.argv[1:])
