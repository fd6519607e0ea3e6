"""The commands ``export`` and ``import``: files of Keras and safetensors.

They alone load Keras and a backend, and only when they run.
"""

import argparse
import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resilient.cli.arguments import CHECKPOINT, Add, opened, run_location
from resilient.cli.commands import OK, Result
from resilient.cli.style import say
from resilient.convert.export import export
from resilient.convert.import_ import import_checkpoint
from resilient.errors import message, printable
from resilient.saving import choose, record
from resilient.serialization import JSON
from resilient.storage.checkpoint import Checkpoint


def add_to(add: Add) -> None:
    """Add the commands to the others."""
    text = "Convert a checkpoint to a Keras or safetensors file."
    more = add("export", _export, text).add_argument
    more("location", **CHECKPOINT)
    text = "the file to write: x.keras, x.weights.h5 or x.safetensors"
    more("--to", metavar="PATH", required=True, help=text)
    text = "needed for .keras and .weights.h5: a function that returns the model"
    more("--model", metavar="MODULE:FUNCTION", help=text)
    more("--force", action="store_true", help="replace PATH")
    text = "Start a run from another run, or from a file of Keras or safetensors."
    more = add("import", _import, text).add_argument
    text = "a run or a checkpoint of it; a directory of BackupAndRestore; or a "
    text += ".keras, .weights.h5 or .safetensors file"
    more("source", metavar="SOURCE", help=text)
    text = "the checkpoint_dir of the run to start"
    more("--to", metavar="DIR", type=run_location, required=True, help=text)
    text = "a function that returns the model, built and compiled"
    more("--model", metavar="MODULE:FUNCTION", required=True, help=text)
    more("--epoch", metavar="N", type=int, help="epochs already trained")


def _export(arguments: argparse.Namespace) -> Result:
    with opened(arguments.location) as store, _converting():
        checkpoint = choose.of_step(store, arguments.location.step)
        if "keras" not in sys.modules:
            # The one library needed to read the checkpoint.
            os.environ["KERAS_BACKEND"] = record.saver_of(checkpoint)
        target = export(
            store.directory,
            arguments.to,
            step=checkpoint.step,
            model=_made(arguments.model) if arguments.model else None,
            overwrite=arguments.force,
        )
    return _written(f"{store}/{checkpoint.path.name}", target, checkpoint)


def _import(arguments: argparse.Namespace) -> Result:
    with _converting():
        checkpoint = import_checkpoint(
            arguments.source,
            _made(arguments.model),
            checkpoint_dir=arguments.to.directory,
            epoch=arguments.epoch,
        )
    return _written(arguments.source, checkpoint.path, checkpoint)


def _written(source: str, target: Path, checkpoint: Checkpoint) -> Result:
    done = checkpoint.progress._asdict()
    return OK, {"source": source, "target": os.fspath(target), **done}, _report


def _report(data: JSON) -> None:
    where = f"step {data['step']:,}, {data['epoch']:,} epochs done"
    say(f"Wrote {data['target']} from {data['source']} ({where})")


@contextlib.contextmanager
def _converting() -> Iterator[None]:
    """Keep other prints out of the output, and print warnings as text."""
    with (
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(sys.stderr),
    ):
        yield
    for each in caught:
        print(printable(str(each.message), lines=True), file=sys.stderr)


def _made(text: str) -> Any:
    """Call the function that makes the model."""
    from resilient.keras_internals import require_model

    module, _, name = text.partition(":")
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        made = getattr(importlib.import_module(module), name)()
        require_model(made)
    except Exception as error:  # whatever the user's function raises
        raise ValueError(
            message(
                "The function that makes the model failed.",
                received=f"--model {text}: {type(error).__name__}: {error}",
                hint="Name a module that can be imported from this directory, and a "
                "function in it that takes no arguments: --model train:make_model. "
                "KERAS_BACKEND selects the backend. Call it in Python to see where.",
            )
        ) from error
    return made
