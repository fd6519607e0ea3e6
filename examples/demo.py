"""Show, on each installed backend, what a kill does to a training run.

Runs digits.py five times per backend: uninterrupted; killed in the middle of an epoch
and run again, with keras-resilient; and the same with Keras's own BackupAndRestore. The
exit status is 0 if ours ends with the same bytes as the uninterrupted run.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

DIGITS = Path(__file__).with_name("digits.py")
EPOCHS, KILLED = 3, "1:17"  # Keras counts epochs and batches from 0
NEXT = """\
Next, in a script of your own, instead of model.fit:

    history = resilient.fit(model, x, y, checkpoint_dir="runs/mine")

and then, to see it killed at random moments and compared byte for byte:

    resilient prove -- python train.py
"""

console = Console(highlight=False)


def installed() -> list[str]:
    """The backends that can be imported."""
    names = ("jax", "tensorflow", "torch")
    return [name for name in names if importlib.util.find_spec(name)]


def run(backend: str, directory: Path, *options: str) -> tuple[int, str]:
    """Run digits.py in a fresh process; return its exit status and output."""
    arguments = ["--checkpoint-dir", directory, "--epochs", str(EPOCHS), *options]
    done = subprocess.run(
        [sys.executable, DIGITS, *arguments],
        env=os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(done.stdout)
    return done.returncode, done.stdout


def run_twice(backend: str, directory: Path, *options: str) -> str:
    """Run digits.py, which kills itself, then again; return the second output."""
    options = (*options, "--kill-at", KILLED)
    status, _ = run(backend, directory, *options)
    assert status == -signal.SIGKILL, "the process should have killed itself"
    return run(backend, directory, *options)[1]


def show(backend: str, home: Path) -> bool:
    """Run one backend; return whether ours ended like the uninterrupted run."""
    console.print(f"\n[bold]{backend}[/]: a CNN learns digits, {EPOCHS} epochs")
    ways = {"keras-resilient": (), "BackupAndRestore": ("--backup-and-restore",)}
    working = console.status("training, killing, and training again")
    with working, ThreadPoolExecutor(3) as pool:
        alone = pool.submit(run, backend, home / "alone")
        again = {
            way: pool.submit(run_twice, backend, home / way, *options)
            for way, options in ways.items()
        }
        expected = ended(alone.result()[1])
        console.print(f"    left alone: {words(*expected)}")
        epoch, batch = (int(number) + 1 for number in KILLED.split(":"))
        console.print(f"  killed (SIGKILL) in epoch {epoch}, after batch {batch}, then")
        same = {}
        for way, done in again.items():
            found = ended(done.result())
            same[way] = found == expected
            mark, verdict = marks(same[way])
            console.print(f"  {mark} {way}: {words(*found)}: {verdict}")
            if way == "keras-resilient":
                resumed = match(r"(?i)(resumed at step .*?) from ", done.result())
                console.print(f"    {resumed}", style="dim")
            else:
                console.print(f"    began epoch {epoch} again", style="dim")
    return same["keras-resilient"]


def marks(same: bool) -> tuple[str, str]:
    """A result's mark and verdict; the mark is ASCII outside of a terminal."""
    verdict = "the same bytes" if same else "DIFFERENT"
    color, mark = ("green", "✓") if same else ("red", "✗")
    if not console.is_terminal:
        mark = "=" if same else "!"
    return f"[bold {color}]{mark}[/]", f"[{color}]{verdict}[/]"


def ended(text: str) -> tuple[str, str]:
    """The number of optimizer steps and the digest, as digits.py prints them."""
    return match(r"optimizer steps (\d+)", text), match(r"digest (\w+)", text)


def words(steps: str, digest: str) -> str:
    """The same in words, to compare by eye."""
    return f"{steps} optimizer steps, digest {digest[:12]}"


def match(pattern: str, text: str) -> str:
    """The text that the pattern's group matches."""
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(f"digits.py did not print what was expected:\n{text}")
    return found[1]


def main() -> int:
    """Run the demo on every installed backend."""
    with tempfile.TemporaryDirectory() as directory:
        same = [show(backend, Path(directory, backend)) for backend in installed()]
    console.print("\nThe digest is of all weights, the optimizer and the History.")
    console.print(f"\n{NEXT}", end="")
    return 0 if same and all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
