"""``resilient prove``: its arguments, and a table that fills as the proof proceeds."""

import argparse
import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient.backends import BACKENDS
from resilient.cli.commands import FAILED, USAGE, failed
from resilient.cli.diff import to_json
from resilient.cli.run import add_for_script, integer, script_of
from resilient.cli.style import BAD, GOOD, console, in_terminal, say
from resilient.errors import ResilientError, printable
from resilient.serialization import JSON

if TYPE_CHECKING:
    from rich.console import RenderableType

    from resilient.prove.experiment import Proof

_EQUAL, _DIFFERENT, _INTERRUPTED = 0, 1, 130
_SAVE = "fits"  # where --save puts them, in the scratch directory
_LINES = 15  # of a script's output

_EXIT_CODES = """\
exit codes:
  0    the ends are equal, byte for byte
  1    they are not
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
    codes, proofs = [], {}
    try:
        for backend in arguments.backend or [None]:
            proof = _one(arguments, command, backend, scratch)
            proofs[backend or "script"] = proof
            codes.append(_EQUAL if proof.equal else _DIFFERENT)
    except KeyboardInterrupt:
        say("Interrupted: nothing is proven.")
        return _INTERRUPTED
    except (OSError, ResilientError) as error:
        return failed(FAILED, error, arguments.json)
    finally:
        if arguments.scratch is None and not any(codes):
            shutil.rmtree(scratch, ignore_errors=True)
    if arguments.json:
        told = {name: proof_to_json(each) for name, each in proofs.items()}
        print(printable(json.dumps(told, indent=1, ensure_ascii=False), lines=True))
    elif any(codes):
        say(f"The runs are in {scratch}.")
    return max(codes)


def _scratch(directory: str | None) -> Path:
    """An empty directory."""
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="resilient-prove-"))
    path = Path(directory).absolute()
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
) -> "Proof":
    from resilient.prove.experiment import Experiment, Options
    from resilient.training.enabled import api
    from resilient.training.trial import Trial

    variables = {} if backend is None else {"KERAS_BACKEND": backend}
    if arguments.save:
        variables |= api.environment(_SAVE, {})
    given = vars(arguments)
    asked = Trial(**{name: given[name] for name in ("epochs", "steps", "data_only")})
    options = Options(command, arguments.kills, arguments.seed, asked, variables)
    directory = scratch / (backend or "script")
    directory.mkdir()
    with _shown(backend, quiet=arguments.json) as show:
        proof = Experiment(options, directory, show).run()
    if not arguments.json:
        _report(proof)
    return proof


@contextlib.contextmanager
def _shown(backend: str | None, *, quiet: bool) -> Iterator[Callable[["Proof"], None]]:
    """Show the proof as it proceeds: live in a terminal, line by line elsewhere."""
    from rich.live import Live

    if quiet or not in_terminal():
        yield _in_lines(quiet)
        return
    with Live(console=console(), refresh_per_second=8) as live:
        yield lambda proof: live.update(_drawn(proof, backend))


def _in_lines(quiet: bool) -> Callable[["Proof"], None]:
    told = 0

    def show(proof: "Proof") -> None:
        nonlocal told
        lines = [] if quiet else _lines(proof)[told:]
        told += len(lines)
        for line in lines:
            say(line)

    return show


def _lines(proof: "Proof") -> list[str]:
    """A line for each kill that was followed by a resume."""
    return [
        f"Kill {number}: while {kill.ending.phase or 'starting'}, after "
        f"{kill.ending.reached or 'nothing'}; resumed at {kill.resumed}."
        for number, kill in enumerate(proof.kills, 1)
        if kill.resumed
    ]


def _drawn(proof: "Proof", backend: str | None) -> "RenderableType":
    """The table, and a progress bar."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    title = f"on {backend}" if backend else None
    table = Table(title=title, box=None, pad_edge=False)
    for column in ("kill", "while", "after", "resumed at"):
        table.add_column(column)
    for number, kill in enumerate(proof.kills, 1):
        ending = kill.ending
        cells = (str(number), ending.phase, str(ending.reached or "-"), kill.resumed)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    if not proof.stage:
        return table
    bar = ProgressBar(total=proof.steps or None, completed=proof.done, width=40)
    return Group(table, Text(f"{proof.stage} "), bar)


def _report(proof: "Proof") -> None:
    """The verdict, and why."""
    kills = f"{len(proof.kills)} kill{'s' * (len(proof.kills) != 1)}"
    if proof.equal:
        what = f"all {proof.steps:,} batches are the same, in the same order."
        if not proof.options.trial.data_only:
            what = (
                f"all {proof.steps:,} recorded states and the final checkpoints are "
                "equal byte for byte: weights, optimizer, metrics, History, random "
                "state."
            )
        say(f"Proven: after {kills}, {what}", GOOD)
        return
    if not proof.kills and proof.failed is None:
        say("NOT proven: the script ended before it could be killed.", BAD)
        say("Let it train for longer, or more epochs, and prove it again.")
        return
    if proof.failed is not None:
        say(
            f"NOT proven: run again after {kills}, the script failed with status "
            f"{proof.failed.status}. Its last lines:",
            BAD,
        )
        for line in proof.failed.last_lines.splitlines()[-_LINES:]:
            say(f"  {line}")
    else:
        say(f"NOT equal after {kills}.", BAD)
    if proof.first is not None:
        leaves = ", ".join(proof.first.leaves[:5]) or "the batch"
        say(f"First different at {proof.first.place}: {leaves}")
    for run in proof.missing[:_LINES]:
        say(f"Only in one of the two: {run}")
    for run, found in proof.ends.items():
        different = [x for x in found.leaves if x.counts and not x.equal]
        facts = [x for x in found.facts if x.counts]
        if different or facts:
            say(
                f"At the end of {run}: {len(different)} tensors and {len(facts)} other "
                f"values differ. See: resilient diff {found.a.path} {found.b.path}"
            )
    for number, reason in enumerate(proof.reasons):
        say(("Likely: " if not number else "Or: ") + reason.text)
        for line in reason.lines:
            say(f"  {line}")
    if not proof.reasons:
        say(
            "No known cause was found. If the script repeats without kills, please "
            "report this."
        )


def proof_to_json(proof: "Proof") -> JSON:
    """All of a proof, as JSON."""
    first = proof.first
    return {
        "equal": proof.equal,
        "steps": proof.steps,
        "kills": [
            {
                "phase": kill.ending.phase,
                "after": None
                if kill.ending.reached is None
                else str(kill.ending.reached),
                "resumed": kill.resumed,
            }
            for kill in proof.kills
        ],
        "first": None
        if first is None
        else {"at": str(first.place), "leaves": list(first.leaves)},
        "ends": {run: to_json(found) for run, found in proof.ends.items()},
        "missing": proof.missing,
        "failed": None if proof.failed is None else proof.failed.status,
        "reasons": [{"text": x.text, "lines": list(x.lines)} for x in proof.reasons],
    }
