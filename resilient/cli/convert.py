"""The commands ``export`` and ``import``: files of Keras and safetensors.

They alone load Keras and a backend, and only when they run.
"""

import argparse
import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient.cli.places import step
from resilient.convert.export import ending_of, export
from resilient.convert.import_ import import_checkpoint
from resilient.errors import NotExactWarning, message, printable
from resilient.saving import choose, record
from resilient.serialization import JSON
from resilient.storage.store import Store

if TYPE_CHECKING:
    import keras

Add = Callable[..., argparse.ArgumentParser]


class UsageError(Exception):
    """The command's arguments make no sense."""


def add_export(add: Add) -> None:
    """Add the command ``export``."""
    text = "Convert a checkpoint to a Keras or safetensors file."
    command = add("export", _export, _report_export, text)
    command.add_argument(
        "--to",
        metavar="PATH",
        required=True,
        help="the file to write: x.keras, x.weights.h5 or x.safetensors",
    )
    command.add_argument(
        "--step",
        metavar="STEP",
        type=step,
        help="step of the checkpoint (default: the newest)",
    )
    _add_model(
        command, "needed for .keras and .weights.h5: a function that returns the model"
    )
    command.add_argument("--force", action="store_true", help="replace PATH")
    command.set_defaults(
        check=lambda arguments: ending_of(Path(arguments.to)), takes_checkpoint=True
    )


def add_import(add: Add) -> None:
    """Add the command ``import``."""
    text = "Start a run from a file of Keras or safetensors."
    command = add("import", _import, _report_import, text, directory=False)
    command.add_argument(
        "source",
        metavar="SOURCE",
        help="a directory of BackupAndRestore; or a .keras, .weights.h5 or "
        ".safetensors file",
    )
    command.add_argument(
        "--to",
        dest="directory",
        metavar="DIR",
        required=True,
        help="the checkpoint_dir of the run to start",
    )
    _add_model(command, "a function that returns the model", required=True)
    command.add_argument(
        "--epoch", metavar="N", type=int, help="epochs already trained"
    )
    command.add_argument(
        "--step", metavar="N", type=int, help="batches already trained"
    )
    command.set_defaults(makes_directory=True)


def _add_model(command: argparse.ArgumentParser, text: str, **options: Any) -> None:
    command.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help=f"{text}, built and compiled",
        **options,
    )


def _export(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    checkpoint = choose.of_step(store, arguments.step)
    if "keras" not in sys.modules:
        # The one library needed to read the checkpoint.
        os.environ["KERAS_BACKEND"] = record.saver_of(checkpoint)
    with _not_exact() as found:
        target = export(
            store.directory,
            arguments.to,
            step=checkpoint.step,
            model=_made(arguments.model) if arguments.model else None,
            overwrite=arguments.force,
        )
    data = {
        "checkpoint": f"{store}/{checkpoint.path.name}",
        "step": checkpoint.step,
        "target": os.fspath(target),
        "not_exact": found,
    }
    return 0, data


def _import(store: Store, arguments: argparse.Namespace) -> tuple[int, JSON]:
    with _not_exact() as found:
        model = _made(arguments.model)
        try:
            checkpoint = import_checkpoint(
                arguments.source,
                model,
                checkpoint_dir=arguments.directory,
                epoch=arguments.epoch,
                step=arguments.step,
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
    data = {
        "source": os.path.abspath(arguments.source),
        "checkpoint": os.fspath(checkpoint.path),
        **checkpoint.progress._asdict(),
        "not_exact": found,
    }
    return 0, data


def _report_import(data: JSON) -> None:
    _warn(data)
    wrote = f"Wrote {data['checkpoint']} from {data['source']}"
    print(printable(f"{wrote}: the next fit begins at epoch {data['epoch'] + 1:,}"))


def _report_export(data: JSON) -> None:
    _warn(data)
    wrote = f"Wrote {data['target']} (step {data['step']:,} of {data['checkpoint']})"
    print(printable(wrote))


def _warn(data: JSON) -> None:
    for text in data["not_exact"]:
        print(text, file=sys.stderr)


@contextlib.contextmanager
def _not_exact() -> Iterator[list[str]]:
    """Collect inexactness warnings; keep other prints out of our output."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NotExactWarning)
        with contextlib.redirect_stdout(sys.stderr):
            yield found
    for each in caught:
        if issubclass(each.category, NotExactWarning):
            found.append(str(each.message))
        else:
            text = f"{each.category.__name__}: {each.message}"
            print(printable(text, lines=True), file=sys.stderr)


def _made(text: str) -> "keras.Model":
    """Call the function that makes the model."""
    module, _, name = text.partition(":")
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            message(
                "The function that makes the model cannot be imported.",
                received=f"--model {text}: {type(error).__name__}: {error}",
                hint="Name a module that can be imported from this directory, and a "
                "function in it that takes no arguments: --model train:make_model. "
                "KERAS_BACKEND selects the backend.",
            )
        ) from error
    model: keras.Model = make()
    return model
