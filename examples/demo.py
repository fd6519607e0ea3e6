"""Show, on each installed backend, that a killed training ends as if left alone.

Runs digits.py three times per backend: left alone; killed in the middle of an epoch;
and the killed command again. The exit status is 0 if the digests are equal.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

DIGITS = Path(__file__).with_name("digits.py")
EPOCHS, KILLED = 4, "2:17"  # Keras counts epochs and batches from 0


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


def show(backend: str, directory: Path) -> bool:
    """Run one backend; return whether both trainings ended the same."""
    print(f"\n{backend}: a small CNN learns handwritten digits, {EPOCHS} epochs")
    alone = digest(run(backend, directory / "alone")[1])
    say("left alone", f"digest {alone[:16]}")
    status, _ = run(backend, directory / "killed", "--kill-at", KILLED)
    epoch, batch = (int(number) + 1 for number in KILLED.split(":"))
    assert status == -signal.SIGKILL, "the process should have killed itself"
    say("another run", f"killed (SIGKILL) in epoch {epoch}, after batch {batch}")
    _, text = run(backend, directory / "killed", "--kill-at", KILLED)
    say("same command", match(r"(?i)(resumed at step .*?) from .*", text))
    resumed = digest(text)
    same = resumed == alone
    verdict = "the same" if same else "DIFFERENT"
    say("ended", f"digest {resumed[:16]}: {verdict} (weights, optimizer, History)")
    return same


def say(what: str, result: str) -> None:
    """Print one line immediately."""
    print(f"  {what:<14}{result}", flush=True)


def digest(text: str) -> str:
    """The digest printed by digits.py."""
    return match(r"digest (\w+)", text)


def match(pattern: str, text: str) -> str:
    """The text that the pattern's group matches."""
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(f"digits.py did not print what was expected:\n{text}")
    return found[1]


def main() -> int:
    """Show every installed backend."""
    with tempfile.TemporaryDirectory() as directory:
        same = [show(backend, Path(directory, backend)) for backend in installed()]
    return 0 if same and all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
