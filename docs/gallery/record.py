"""Run the examples, and record their output for the gallery.

    KERAS_BACKEND=jax python docs/gallery/record.py
    KERAS_BACKEND=torch python docs/gallery/record.py torch_loop

Records a backend's examples, or only the named ones, in `output/`. The commands kill
processes; the output of a killed one ends with "Killed", as in a shell.
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

# TensorFlow's own log lines, with or without the prefix of one of several processes.
LOG = r"(?m)^(\[\d\] )?(WARNING: All log messages before absl|[IWE]\d{4} ).*\n"

ALONE = "python examples/{}.py --checkpoint-dir runs/a"
KILLED = "python examples/{}.py --checkpoint-dir runs/b {}"
TWICE = (ALONE, KILLED, KILLED)
SUPERVISED = tuple(f"resilient run --nproc 2 -- {one}" for one in (ALONE, KILLED))
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
    },
}


def ran(command: str, folder: Path) -> str:
    """Run a command; return it as typed, with its output."""
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
    """Run an example in an empty folder, and record its output."""
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
    """Record this backend's examples, or only the named ones."""
    examples = EXAMPLES[os.environ["KERAS_BACKEND"]]
    for name in names or examples:
        record(name, *examples[name])
        print(name, "recorded")  # noqa: T201  # progress


if __name__ == "__main__":
    main(*sys.argv[1:])
