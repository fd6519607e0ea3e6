"""``resilient prove``: its arguments, and a proof for each backend."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from resilient.backends import BACKENDS
from resilient.cli.commands import FAILED, USAGE, error_to_json, failed
from resilient.cli.proof import proof_to_json, report, shown
from resilient.cli.run import add_for_script, integer, script_of
from resilient.cli.style import say
from resilient.errors import ResilientError, printable
from resilient.serialization import JSON

if TYPE_CHECKING:
    from resilient.prove.proof import Proof

_EQUAL, _DIFFERENT, _INTERRUPTED = 0, 1, 130
_SAVE = "fits"  # where --save puts them, in the scratch directory

_EXIT_CODES = """\
exit codes:
  0    the ends are equal, byte for byte
  1    they are not, or no kill was followed by a resume from a checkpoint
  2    wrong usage
  5    there is nothing to prove: the script fails by itself, or trains nothing
  130  it was interrupted
"""


def add_to(commands: Any) -> None:
    """Add the command to those of ``resilient``.

    Args:
        commands: What ``add_subparsers`` returned.
    """
    text = "Kill a training script at random moments, and prove that it ends the same."
    parser = add_for_script(commands, "prove", text, _EXIT_CODES)
    add = parser.add_argument
    text = "how often the script is killed (default: 5)"
    add("--kills", metavar="N", type=integer, default=5, help=text)
    text = "seed of the moments of the kills (default: 0)"
    add("--seed", metavar="N", type=partial(integer, least=0), default=0, help=text)
    text = "Keras's backend (default: that of the script; repeatable)"
    add("--backend", choices=BACKENDS, action="append", help=text)
    text = "train at most N epochs"
    add("--epochs", metavar="N", type=integer, help=text)
    text = "train, and validate, at most N steps of each epoch"
    add("--steps", metavar="N", type=integer, help=text)
    text = "only draw the data, and check the order of samples"
    add("--data-only", action="store_true", help=text)
    text = "make every model.fit of the script resumable, as `resilient run --save`"
    add("--save", action="store_true", help=text)
    text = "keep the runs in DIR (default: a temporary directory, kept if they differ)"
    add("--scratch", metavar="DIR", help=text)
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(supervise=prove)


def prove(arguments: argparse.Namespace) -> int:
    """Prove the command that was given; the exit code."""
    from resilient.supervise.options import require_process_groups

    command = script_of(
        arguments,
        "no command to prove; give one, such as: resilient prove -- python train.py",
    )
    try:
        require_process_groups()
        scratch = _scratch(arguments.scratch)
    except (OSError, ResilientError) as error:
        return failed(USAGE, error, arguments.json)
    told: dict[str, JSON] = {}
    codes: list[int] = []
    try:
        with _ended_by_signals():
            for backend in dict.fromkeys(arguments.backend or [None]):
                code, found = _one(arguments, command, backend, scratch)
                codes.append(code)
                told[backend or "script"] = found
    except KeyboardInterrupt:
        end = ResilientError("Interrupted: nothing is proven.")
        return failed(_INTERRUPTED, end, arguments.json)
    finally:
        if arguments.scratch is None and not (any(codes) and _has_output(scratch)):
            shutil.rmtree(scratch, ignore_errors=True)
    for each in told.values():
        each["scratch"] = str(scratch) if scratch.exists() else None
    if arguments.json:
        text = json.dumps(told, indent=1, ensure_ascii=False)
        print(printable(text, lines=True))
    elif any(codes) and scratch.exists():
        say(f"The runs are in {scratch}.")
    return max(codes)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Inside, signals that ask this process to end also end the script."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # it ends already
        raise SystemExit(128 + number)

    before = {
        each: signal.signal(each, end)
        for each in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is not signal.SIG_IGN  # as under nohup
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _has_output(scratch: Path) -> bool:
    files = (each for each in scratch.rglob("*") if each.is_file())
    return any(each.stat().st_size for each in files)


def _scratch(directory: str | None) -> Path:
    """An empty directory."""
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="resilient-prove-"))
    path = Path(os.path.abspath(directory))
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise ResilientError(
            "The scratch directory is not empty.",
            received=path,
            hint="Pass one that is empty or does not exist.",
        )
    return path


def _one(
    arguments: argparse.Namespace,
    command: list[str],
    backend: str | None,
    scratch: Path,
) -> tuple[int, JSON]:
    """Prove the command on one backend; the exit code, and the proof as JSON."""
    try:
        proof = _proof(arguments, command, backend, scratch / (backend or "script"))
    except BrokenPipeError:  # nobody reads the output any more
        raise
    except (OSError, ResilientError) as error:
        if not arguments.json:  # which is printed once, for all backends
            failed(FAILED, error, as_json=False)
        return FAILED, error_to_json(error)
    if not arguments.json:
        report(proof)
    return _EQUAL if proof.equal else _DIFFERENT, proof_to_json(proof)


def _proof(
    arguments: argparse.Namespace,
    command: list[str],
    backend: str | None,
    directory: Path,
) -> "Proof":
    from resilient.prove.experiment import Experiment
    from resilient.prove.proof import Options
    from resilient.training.enabled import api
    from resilient.training.trial import Trial

    variables = {} if backend is None else {"KERAS_BACKEND": backend}
    if arguments.save:
        variables |= api.environment(_SAVE, {})
    given = vars(arguments)
    asked = Trial(**{name: given[name] for name in ("epochs", "steps", "data_only")})
    options = Options(command, arguments.kills, arguments.seed, asked, variables)
    directory.mkdir()
    with shown(backend, quiet=arguments.json) as show:
        return Experiment(options, directory, show).run()
