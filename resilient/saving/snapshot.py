"""What a save holds in memory: one process's part of a checkpoint, not yet written.

Taken by the training thread, and written by the writer's thread while training goes on.
Everything that is not a tensor is JSON; every tensor is in ``variables/``, in the
backend's own format.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from resilient.backends.base import ALONE, HeldTensors, Part
from resilient.errors import NotSupportedError
from resilient.progress import Progress
from resilient.saving.run_json import RunJson, encoded
from resilient.serialization import Encoded
from resilient.serialization.json_values import encode
from resilient.serialization.position import Positions
from resilient.serialization.schema import to_json
from resilient.storage.files import JSON_BYTES

VARIABLES = "variables"
UNCHANGED = "unchanged"  # in that: tensors in files that two checkpoints may share

# The position in a checkpoint without data.
NOWHERE = encode(to_json(Positions()), {}, "data")


def paths(part: Part) -> tuple[str, str]:
    """Names of the files of a part's run and position."""
    run = f"run/{part.name}.json" if part.index else "run.json"
    return run, f"data/{part.name}.json"


@dataclass(frozen=True)
class Snapshot:
    """One process's part of a checkpoint.

    Attributes:
        run: Everything that is neither a position nor a tensor; training no longer
            changes it.
        position: The position of the data, encoded; likewise.
        tensors: Every tensor.
        progress: Where training was.
        part: Which part it is.
        metrics: The logs of the epoch that ended, if one did.
        finished: Whether this is the end of the run.
        staging: Name of the staging directory, if processes agreed on one.
        stall: Seconds that training waited for it.
        postponed: Whether it fell due while another was being written.
    """

    run: RunJson
    position: Encoded
    tensors: HeldTensors
    progress: Progress
    part: Part = ALONE
    metrics: Mapping[str, float] = field(default_factory=dict)
    finished: bool = False
    staging: str | None = None
    stall: float = 0.0
    postponed: bool = False

    def write_state(self, directory: str | os.PathLike[str]) -> list[str]:
        """Write everything but the tensors into an empty directory.

        Makes a directory in it for the tensors, ``VARIABLES``.

        Returns:
            The files, relative to the directory.

        Raises:
            NotSupportedError: It could not be read back.
            OSError: The file system failed.
        """
        for path, content in zip(
            paths(self.part), (encoded(self.run), self.position), strict=True
        ):
            raw = json.dumps(content, allow_nan=False).encode()
            if len(raw) > JSON_BYTES:
                raise NotSupportedError(
                    f"{path} could not be read back, so nothing was saved.",
                    received=f"{len(raw):,} bytes; the limit is {JSON_BYTES:,}",
                    hint="Keep less state in callbacks and objects, and keep large "
                    "state in arrays.",
                )
            if folder := os.path.dirname(path):
                os.mkdir(os.path.join(directory, folder))
            with open(os.path.join(directory, path), "wb") as file:
                file.write(raw)
        os.mkdir(os.path.join(directory, VARIABLES))
        return list(paths(self.part))
