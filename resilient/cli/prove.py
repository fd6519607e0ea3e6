"""``resilient prove``: its arguments, and the verdict for people."""

import argparse
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from resilient.cli.arguments import Add, add_script, number, script_of
from resilient.cli.commands import DAMAGED, OK, Result
from resilient.cli.style import BAD, GOOD, say
from resilient.errors import printable

if TYPE_CHECKING:
    from resilient.prove.experiment import Proof
    from resilient.prove.recorded import Difference

_SAVE = "fits"  # where --save puts them, in the scratch directory
_LINES = 15  # of a script's output, and of what is missing
_LEAVES = 5


def add_to(add: Add) -> None:
    """Add the command to the others."""
    text = "Kill a training script at random moments, and prove that it ends the same."
    parser = add("prove", _prove, text)
    more = parser.add_argument
    text = "how often the script is killed (default: 5)"
    more("--kills", metavar="N", type=number, default=5, help=text)
    text = "seed of the moments of the kills (default: 0)"
    more("--seed", metavar="N", type=partial(number, least=0), default=0, help=text)
    text = "make every model.fit of the script resumable, as `resilient run --save`"
    more("--save", action="store_true", help=text)
    add_script(parser)


def _prove(arguments: argparse.Namespace) -> Result:
    """Proves the command that was given."""
    from resilient.prove.experiment import Experiment
    from resilient.supervise.options import require_process_groups
    from resilient.training.enabled import api

    command = script_of(arguments)
    require_process_groups()
    for each in (signal.SIGTERM, signal.SIGHUP):  # which end the script, too
        if signal.getsignal(each) is signal.SIG_DFL:
            signal.signal(each, lambda number, _: sys.exit(128 + number))
    scratch = Path(tempfile.mkdtemp(prefix="resilient-prove-"))
    proof = None
    try:
        proof = Experiment(
            command,
            scratch,
            _progress,
            kills=arguments.kills,
            seed=arguments.seed,
            variables=api.environment(_SAVE, {}) if arguments.save else {},
        ).run()
    finally:
        if proof is not None and proof.equal:
            shutil.rmtree(scratch, ignore_errors=True)
        else:
            _progress(f"The runs, and what the script printed, are in {scratch}.")
    data = {"equal": proof.equal, **asdict(proof)}
    return OK if proof.equal else DAMAGED, data, lambda _: _report(proof)


def _progress(line: str) -> None:
    print(printable(line), file=sys.stderr)


def _report(proof: "Proof") -> None:
    """Print the verdict, and why."""
    for note in proof.notes:
        say(f"Note: {note}")
    kills = len(proof.kills)
    after = f"after {kills} kill{'s' * (kills != 1)}"
    if proof.equal:
        same = f"all {proof.steps:,} recorded states are equal byte for byte"
        what = "batches, weights, optimizer, metrics, History, random state"
        say(f"Proven: {after}, {same}: {what}.", GOOD)
    elif proof.alike:
        say(f"NOT proven: {after}, training never went on from a checkpoint.", BAD)
        say("Let it train for longer, or prove it again with another --seed.")
    elif proof.failed:
        status = f"the script failed with status {proof.failed}"
        say(f"NOT proven: run again {after}, {status}. Its last lines:", BAD)
        for line in proof.last_lines.splitlines()[-_LINES:]:
            say(f"  {line}")
    else:
        say(f"NOT equal {after}.", BAD)
    if proof.first is not None:
        say(f"First different at {_leaves(proof.first)}")
    for each in proof.missing[:_LINES]:
        say(f"Only in one of the two: {each}")
    if proof.repeats is not None:
        _report_cause(proof)


def _report_cause(proof: "Proof") -> None:
    after = " after a kill" if proof.repeats else ""
    if proof.alone is None:
        say("Without a kill, the script repeats.")
    else:
        say(f"Even without a kill, it does not repeat, from {_leaves(proof.alone)}")
    if proof.batches is not None:
        say(f"Its batches do not repeat{after}, from {proof.batches.at} on.")
    elif proof.batches_repeat:
        say(f"Its batches repeat{after}.")
    else:
        say("Whether its batches repeat is unknown.")


def _leaves(found: "Difference") -> str:
    more = ", ..." * (len(found.leaves) > _LEAVES)
    return f"{found.at}: {', '.join(found.leaves[:_LEAVES])}{more}"
