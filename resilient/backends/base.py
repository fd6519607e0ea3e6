"""The seam: all that differs between TensorFlow, JAX and PyTorch.

A backend turns live tensors into a host copy, writes that copy in its own native
format, reads it back, and knows the backend's global random state. It knows nothing
of epochs, callbacks, policies, commits or Keras trainers.

Requirements on every backend:

1. Whatever training does next, the snapshot keeps its bytes: it is a copy, or it holds
   memory that the backend is shown never to write to while someone holds it.
2. ``Snapshot.write`` may run on another thread and never commits.
3. ``read`` returns exactly the bytes that were written, under the same names, with
   the same dtypes (bfloat16 and float8 included), whatever the live device is.
4. The directory can be read with the format's own tool and nothing of ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from resilient.serialization import JSON


@dataclass(frozen=True)
class Part:
    """Which part of a checkpoint is a process's.

    Attributes:
        index: Number of the process, from 0.
        count: How many there are.
        replicas: How many replicas of the model they have, all together.
        own: Names of the tensors that are this process's alone. The others it has in
            common with all: each gives them to ``Backend.snapshot`` where the backend
            ``divides`` them, otherwise process 0 does.
    """

    index: int = 0
    count: int = 1
    replicas: int = 1
    own: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """What files and directories of this part are called."""
        return f"process-{self.index}-of-{self.count}"


ALONE = Part()


class Snapshot(Protocol):
    """Named tensors as they were, safe to write while training goes on."""

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The tensors, by name; not to be written to.

        Of one that is spread over devices, as the backend holds this process's part.
        """

    def write(self, directory: str, part: Part = ALONE) -> None:
        """Write the tensors into ``directory``, which exists and is empty.

        Args:
            directory: This process's own. What all processes wrote comes together in
                one directory afterwards: no two may write a file of the same name.
            part: Which part of a checkpoint this is.
        """

    def release(self) -> None:
        """It is written: let go of live memory, leave the rest to the next snapshot."""


class Backend(Protocol):
    """What differs between the Keras backends.

    Attributes:
        name: As Keras says it.
        divides: Whether several processes share the work of writing tensors that they
            have in common.
        compares: Pattern of the files, relative to what ``Snapshot.write`` filled,
            whose every byte ``read`` compares with checksums of the format's own, and
            raises where one is another. Empty: of none.
    """

    name: ClassVar[str]
    divides: ClassVar[bool]
    compares: ClassVar[str]

    def snapshot(
        self, tensors: Mapping[str, Any], reuse: Snapshot | None = None
    ) -> Snapshot:
        """Hold the present bytes of tensors on the host. Training waits for this.

        Args:
            tensors: Name to backend tensor, backend variable or numpy array. Names
                hold letters, digits, ``_``, ``-`` and ``.`` only.
            reuse: An earlier snapshot that nobody needs any more. Its memory may be
                overwritten: memory that was written to before is four times as fast.
        """

    def read(self, directory: str, part: Part = ALONE) -> dict[str, Any]:
        """Read every tensor of a written snapshot, as numpy arrays.

        Of several processes those that all have in common, and those of ``part``. A
        tensor that processes share may be left on the disk, as an object that has a
        shape and a dtype, that ``assign`` takes, and that ``numpy.asarray`` reads
        whole.

        Files that do not match ``compares`` may be mapped: every byte of them was read
        before. (A byte that a disk cannot give back is an error to who reads it, and
        the end of a process that maps it.)

        Args:
            directory: What ``Snapshot.write`` filled, of all processes.
            part: Whose.
        """

    def assign(self, target: Any, value: Any) -> None:
        """Set a Keras variable, backend variable or buffer in place.

        ``value`` is as ``read`` returns it, and of a tensor that is spread over devices
        only what the devices of this process need of it is read. On torch it may also
        be what ``Snapshot.arrays`` has of it. No process waits for another.

        The shape and dtype have been compared before; nothing is cast. An array that
        is read-only, as ``read`` may return it, may be kept: nobody writes to it.
        """

    def random_state(self) -> JSON:
        """The backend's global random state, as JSON."""

    def set_random_state(self, state: JSON) -> None:
        """Set what ``random_state`` returned."""

    def versions(self) -> dict[str, str]:
        """Versions of the libraries that decide bytes: the backend's own."""
