"""Runs ``resilient run`` in a process of its own, on scripts that train nothing.

The scripts say what they do as ``resilient.fit`` does: with a heartbeat and events.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

# `directory`, `attempt` (from 0), `events`, and `train(step)` for the scripts.
PRELUDE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from resilient.telemetry.events import Events
from resilient.telemetry.heartbeat import Heartbeat
from resilient.progress import Progress

directory = Path(sys.argv[1])
directory.mkdir(exist_ok=True)
rank = os.environ.get("RANK", "0")
attempt = len(list(directory.glob(f"attempt-{rank}-*")))
(directory / f"attempt-{rank}-{attempt}").write_text(str(os.getpid()))
events = Events(directory)
heart = Heartbeat(
    events.attempt, directory, [Path(os.environ["RESILIENT_HEARTBEAT"])]
)

def train(step, phase="training"):
    heart.beat(phase, Progress(step, 0, step))
    heart.write()

def ready():
    (directory / f"ready-{rank}-{attempt}").touch()

def forever():
    while True:
        time.sleep(60)
"""


class Supervised:
    """A ``resilient run`` that has been started.

    Attributes:
        directory: The checkpoint directory of the script.
    """

    def __init__(self, directory, environment, options, script, start, arguments=()):
        self.directory = directory
        code = textwrap.dedent(start) + textwrap.dedent(script)
        command = [sys.executable, "-c", code, os.fspath(directory), *arguments]
        options = [str(option).format(directory=directory) for option in options]
        options = ["--backoff", "0.01", *options]
        # Under nohup, it would inherit that hangups are ignored.
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "resilient", "run", *options, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        signal.signal(signal.SIGHUP, before)

    def end(self):
        """Exit status, stdout and stderr."""
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out.decode(), err.decode()

    def wait_for(self, name):
        """Wait until the script has made a file; its text."""
        path = self.directory / name
        deadline = time.monotonic() + 120
        while not path.exists():
            assert self.process.poll() is None, self.process.stderr.read().decode()
            assert time.monotonic() < deadline, f"no {name}"
            time.sleep(0.01)
        return path.read_text()

    def send(self, signum):
        self.process.send_signal(signum)

    def events(self, *names):
        """The supervisor's events, all or some."""
        lines = (self.directory / "events.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        found = [event for event in found if event["pid"] == self.process.pid]
        return [event for event in found if not names or event["event"] in names]

    def attempts(self, rank=0):
        """The processes that were started, in their order."""
        paths = sorted(Path(self.directory).glob(f"attempt-{rank}-*"))
        return [int(path.read_text()) for path in paths]

    def clean_up(self):
        if self.process.poll() is None:
            for path in self.directory.glob("attempt-*"):
                kill(int(path.read_text() or 0))
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()


def kill(pid):
    """Kill a process, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def gone(pid):
    """Wait until a process is no more; a zombie that nobody reaps is none, too."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
        ).stdout.strip()
        if not status or status.startswith("Z"):
            return True
        time.sleep(0.02)
    return False
