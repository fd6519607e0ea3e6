"""The interface to TensorFlow, JAX and PyTorch: everything that differs between them.

A backend copies live tensors to the host, writes that copy in its native format, reads
it back, and captures the backend's global random state. It knows nothing of epochs,
callbacks, policies, commits or Keras trainers.

Requirements on every backend:

1. Whatever training does next, the snapshot keeps its bytes: it is a copy, or memory
   that the backend was shown not to write to while someone holds it.
2. ``Snapshot.write`` may run on another thread and never commits.
3. ``read`` returns exactly the bytes that were written, under the same names, with
   the same dtypes (bfloat16 and float8 included), whatever the live device is.
4. The format's own tools can read the directory without this library.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from resilient.backends.stored_files import Listed


@dataclass(frozen=True)
class Part:
    """A process's part of a checkpoint.

    Attributes:
        index: Of the process, from 0.
        count: Of processes.
        replicas: Of the model, in all processes together.
        own: Names of the tensors that only this process has. All have the others: each
            passes them to ``Backend.snapshot`` where the backend ``divides`` them,
            otherwise process 0 does.
    """

    index: int = 0
    count: int = 1
    replicas: int = 1
    own: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Names files and directories of this part."""
        return f"process-{self.index}-of-{self.count}"


ALONE = Part()


class Snapshot(Protocol):
    """Named tensors as they were, safe to write while training goes on."""

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The tensors by name, read-only; of spread ones, what this process holds."""

    def write(
        self,
        directory: str,
        part: Part = ALONE,
        names: Collection[str] | None = None,
    ) -> None:
        """Write the tensors into ``directory``, which exists and is empty.

        Args:
            directory: Of this process. The files of all processes are moved into one
                directory afterwards: their names must differ.
            part: Of the checkpoint.
            names: Of the tensors; None: all.
        """

    def digests(self, part: Part) -> dict[str, str]:
        """Checksums of what all processes must have alike, by which piece it is."""

    def release(self) -> None:
        """Release live memory after writing; the next snapshot may reuse the rest."""


class Generators(Protocol):
    """The global random generators of a library."""

    def random_state(self) -> dict[str, Any]:
        """Their state, as plain Python values."""

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Set what ``random_state`` returned."""

    def check_random_state(self, state: dict[str, Any]) -> None:
        """Raise (any class) unless ``set_random_state`` would accept it."""


class Backend(Generators, Protocol):
    """What differs between the Keras backends.

    Attributes:
        name: As in Keras.
        divides: Whether processes share the work of writing tensors that all have.
        compares: Pattern of the files, relative to what ``Snapshot.write`` filled, that
            ``read`` itself compares with their checksums, so that they are read once.
            Empty: none.
    """

    name: ClassVar[str]
    divides: ClassVar[bool]
    compares: ClassVar[str]

    def snapshot(
        self, tensors: Mapping[str, Any], reuse: Snapshot | None = None
    ) -> Snapshot:
        """Hold the current bytes of tensors on the host. Training waits for this.

        Args:
            tensors: Name to backend tensor, backend variable or numpy array. Names
                hold letters, digits, ``_``, ``-`` and ``.`` only.
            reuse: An earlier snapshot that is no longer needed. Its memory may be
                overwritten, which is four times as fast as fresh memory.
        """

    def read(
        self,
        directory: str,
        part: Part = ALONE,
        *,
        files: Mapping[str, Listed] | None = None,
    ) -> dict[str, Any]:
        """Read the tensors of a written snapshot, as numpy arrays.

        Somebody else may have written the files: what they say is checked before it is
        used, and never makes anything but arrays, no larger than the files.

        With several processes, those that all have, and those of ``part``. A tensor
        that processes share may be left on the disk, as an object with shape and dtype
        that ``assign`` takes and that ``numpy.asarray`` reads whole.

        Files that do not match ``compares`` may be mapped: every byte of them was read
        before. (A bad sector raises an error when read, and kills a process that maps
        it.)

        Args:
            directory: What ``Snapshot.write`` filled, of all processes.
            part: Whose.
            files: Each file by its path in ``directory``, with slashes, from the
                manifest; no others are opened. None: those that are there.

        Raises:
            CorruptCheckpointError: The files hold something else than what ``write``
                writes.
        """

    def require_like(self, target: Any, value: Any) -> None:
        """Raise CheckpointMismatchError where ``assign`` would cast or broadcast."""

    def assign(self, target: Any, value: Any) -> None:
        """Set a Keras variable, backend variable or buffer in place.

        ``value`` is as ``read`` returns it; of a tensor that is spread over devices,
        only what the devices of this process need is read. On torch it may also be as
        in ``Snapshot.arrays``. No process waits for another.

        Shape and dtype were compared before; nothing is cast. A read-only array may be
        kept: nobody writes to it.
        """

    def peek(self, tensor: Any, most: int) -> Callable[[], np.ndarray | None]:
        """A few elements of a tensor, spread over it, without waiting for a device.

        Args:
            tensor: The backend's, or a Keras variable; of one that is spread over
                devices, the part of the first.
            most: Elements.

        Returns:
            A function that returns them as a copy; None while they are being computed,
            and where a later step has overwritten them.
        """

    def versions(self) -> dict[str, str]:
        """Versions of the backend's libraries, which affect the bytes."""
