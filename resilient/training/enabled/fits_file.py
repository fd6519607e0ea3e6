"""What ``fits.json`` holds: the calls of ``fit`` of a program, and what it drew."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from resilient.errors import CheckpointReadError
from resilient.serialization.schema import Count, SchemaError, from_json, parse
from resilient.storage.files import JSON_BYTES, read_file

FITS = "fits.json"
LONGEST_LINE, MOST_LINES = 200, 20
OF_PROJECTS = r"[0-9a-f]{0,40}(-[0-9]{1,6})?"  # marks and checksums; part of names

_Text = Annotated[str, Meta(max_length=LONGEST_LINE)]
_Project = Annotated[str, Meta(pattern=rf"^{OF_PROJECTS}\Z")]
_Many = Meta(max_length=100_000)


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        model: Name of the model.
        settings: Checksum of its layers' and its optimizer's settings.
        after: Number of the call that trained the same model last, if any.
        weights: Checksum of the weights that it began with; None if not known.
        lines: Lines of the program that were calling it, the innermost first.
    """

    model: _Text
    settings: _Text
    after: Count | None
    weights: _Text | None
    lines: Annotated[list[_Text], Meta(max_length=MOST_LINES)]


@dataclass(frozen=True)
class Saved:
    """What the file holds.

    Attributes:
        program: File name of the program.
        launch: Which launch by ``resilient run`` was the last; empty without it.
        process: Which process made calls last.
        calls: From the first on.
        run: Names the program's runs that began with the same first fit.
        seeds: What each oracle of a search drew that was given none; 0 if not known.
        projects: What each tuner found, see ``projects``; empty if not known.
    """

    program: _Text
    launch: _Text
    process: Count
    calls: Annotated[list[Call], _Many]
    run: Annotated[str, Meta(pattern=r"^[0-9a-f]{0,40}\Z")] = ""
    seeds: Annotated[list[Count], _Many] = field(default_factory=list)
    projects: Annotated[list[_Project], _Many] = field(default_factory=list)


def has_fits(directory: str | os.PathLike[str]) -> bool:
    """Whether a program has made calls with this directory."""
    return os.path.lexists(os.path.join(directory, FITS))


def read(directory: Path) -> Saved | None:
    """What a program made; None if it has made no calls there.

    Raises:
        CheckpointReadError: The file cannot be read.
    """
    if not has_fits(directory):
        return None
    try:
        return from_json(Saved, parse(read_file(directory, FITS, JSON_BYTES)))
    except (OSError, SchemaError) as error:
        raise CheckpointReadError(
            f"{FITS}, which records the order of the fits, cannot be read.",
            received=f"{directory / FITS}: {error}",
            hint="Restore it; or delete it, if the program has not changed.",
        ) from None
