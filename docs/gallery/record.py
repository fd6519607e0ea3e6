"""Run the examples, and record what they print, for their pages in the gallery.

    KERAS_BACKEND=jax python docs/gallery/record.py
    KERAS_BACKEND=torch python docs/gallery/record.py torch_loop

Records those of a backend in `output/`, or those that are named. Processes are killed
as the commands say; the last line of a killed one says so, as a shell would.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTPUT = Path(__file__).with_name("output")

# What TensorFlow logs about itself, by one process or by one of several.
LOG = r"(?m)^(\[\d\] )?(WARNING: All log messages before absl|[IWE]\d{4} ).*\n"

ALONE = "python examples/{}.py --checkpoint-dir runs/a"
KILLED = "python examples/{}.py --checkpoint-dir runs/b {}"
TWICE = (ALONE, KILLED, KILLED)
SUPERVISED = tuple(f"resilient run --nproc 2 -- {one}" for one in (ALONE, KILLED))
# By the backend: what is run, in this order, with which options where it is killed.
EXAMPLES = {
    "jax": {
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
    },
}


def ran(command: str, folder: Path) -> str:
    """A command as it is typed, and what it printed."""
    words = shlex.split(command)
    programs = {"python": [], "resilient": ["-m", "resilient"]}
    own = str(Path(sys.executable).parent)  # what `resilient run -- python` finds
    path = os.pathsep.join([own, os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, *programs[words[0]], *words[1:]],
        cwd=folder,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "88", "PATH": path},
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
    return f"$ {command}\n{printed}"


def record(name: str, commands: tuple[str, ...], options: str) -> None:
    """Run an example in an empty folder, and write down what it printed."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "examples").symlink_to(ROOT / "examples")
        said = [ran(one.format(name, options).strip(), folder) for one in commands]
    text = "\n".join(said)
    for path in (home, str(ROOT), sys.prefix):
        text = text.replace(f"{path}/", "")
    text = re.sub(r"\x1b\[[0-9;]*m|.*\r", "", text)  # colours, progress bars
    text = re.sub(LOG, "", text)
    OUTPUT.joinpath(f"{name}.txt").write_text(text)


def main(*names: str) -> None:
    """Record the examples of this backend, or those that are named."""
    examples = EXAMPLES[os.environ["KERAS_BACKEND"]]
    for name in names or examples:
        record(name, *examples[name])
        print(name, "recorded")  # noqa: T201  # for who waits


if __name__ == "__main__":
    main(*sys.argv[1:])
