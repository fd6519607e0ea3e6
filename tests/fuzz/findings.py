"""What was found: one entry for each kind, under a name that says which."""

import contextlib
import re
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path

from .oracle import Finding
from .target import Files, Target

_OURS = ("/resilient/",)
_KEPT = "current.json"  # the case that is being run: what ends the process leaves it


class Findings:
    """Keeps them in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def kept(self, target: Target, changed: Files) -> Iterator[None]:
        """Keep a case if a ``Finding`` comes of it, or the end of this process."""
        current = self.directory / _KEPT
        current.write_text(target.entry(changed))
        try:
            yield
        except Finding as finding:
            name, told = (
                _kind(target, finding),
                "".join(traceback.format_exception(finding)),
            )
            if not (self.directory / f"{name}.json").exists():
                current.rename(self.directory / f"{name}.json")
                (self.directory / f"{name}.txt").write_text(told)
            raise

    def ended(self, how: str) -> None:
        """The process that had this directory is no more."""
        current = self.directory / _KEPT
        if current.exists():
            name = f"ended-{zlib.crc32(current.read_bytes()):08x}"
            current.rename(self.directory / f"{name}.json")
            (self.directory / f"{name}.txt").write_text(how)

    def names(self) -> list[str]:
        return sorted(p.stem for p in self.directory.glob("*.json") if p.name != _KEPT)

    def done(self) -> None:
        (self.directory / _KEPT).unlink(missing_ok=True)


def _kind(target: Target, finding: Finding) -> str:
    """The reader, the error, and the last line of ours: one name for each fault."""
    error = finding.__cause__ or finding
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if "/resilient/" in each.filename]
    place = f"{Path(ours[-1].filename).stem}-{ours[-1].name}" if ours else "elsewhere"
    what = type(error).__name__ if finding.__cause__ else str(finding)[:40]
    return re.sub(r"[^a-zA-Z0-9]+", "-", f"{target.name} {what} {place}").strip("-")
