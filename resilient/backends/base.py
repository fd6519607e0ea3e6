"""The interface to TensorFlow, JAX and PyTorch: everything that differs between them.

A backend copies live tensors to the host, writes that copy in its native format, sets
live ones, and captures the backend's global random state. It knows nothing of epochs,
callbacks, policies, commits or Keras trainers.

Requirements on every backend:

1. Whatever training does next, the snapshot keeps its bytes: it is a copy, or memory
   that the backend was shown not to write to while someone holds it.
2. ``HeldTensors.write`` may run on another thread and never commits.
3. ``backends.read`` returns exactly the bytes that were written, under the same names,
   with the same dtypes (bfloat16 and float8 included), whatever the live device is.
4. The format's own tools can read the directory without this library.
"""

import contextlib
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np


@dataclass(frozen=True)
class Part:
    """A process's part of a checkpoint.

    Attributes:
        index: Of the process, from 0.
        count: Of processes.
        replicas: Of the model, in all processes together.
        own: Names of the tensors that only this process has. All have the others: each
            passes them to ``Backend.snapshot`` where the backend ``spreads`` them,
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


@contextlib.contextmanager
def plain(directory: str | os.PathLike[str]) -> Iterator[str]:
    """The directory under an absolute path of UTF-8 without brackets and backslashes.

    To TensorFlow ``run[1]`` is a pattern, which ``run1`` matches; to TensorStore a
    backslash separates directories. No library takes a path that is not UTF-8.
    """
    path = os.path.abspath(directory)
    if not any(c in "[\\" or "\ud800" <= c <= "\udfff" for c in path):
        yield path
        return
    with tempfile.TemporaryDirectory() as beside:
        link = os.path.join(beside, "directory")
        os.symlink(path, link)
        yield link


class HeldTensors(ABC):
    """Named tensors as they were, safe to write while training goes on.

    Args:
        held: Name to tensor, of the kind that the backend writes fastest.
    """

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The tensors by name, read-only; of spread ones, what this process holds."""
        return _Views(dict(self.held), self._view)

    @abstractmethod
    def _view(self, held: Any) -> np.ndarray:
        """View one of them as a numpy array."""

    def write(
        self,
        directory: str,
        part: Part = ALONE,
        names: Collection[str] | None = None,
        *,
        below: str = "",
    ) -> list[str]:
        """Write the tensors into an empty directory.

        Args:
            directory: Of this process. The files of all processes are moved into one
                directory afterwards: their names must differ.
            part: Of the checkpoint.
            names: Of the tensors; None: all.
            below: The directory below that one to write into; it exists.

        Returns:
            The files, relative to ``directory``: a reader needs each of them.

        Raises:
            OSError: The file system failed, or somebody deleted a file meanwhile.
        """
        held = self.held
        some = held if names is None else {name: held[name] for name in names}
        with plain(os.path.join(directory, below)) as path:
            files = self._write(some, path, part)
        return [os.path.join(below, name) for name in files]

    @abstractmethod
    def _write(self, held: Mapping[str, Any], directory: str, part: Part) -> list[str]:
        """Write some of them into a directory with a plain name; return the files."""

    def digests(self, part: Part) -> dict[str, str]:
        """Checksums of what all processes must have alike, by which piece it is.

        Empty where the backend cannot let processes differ.

        Args:
            part: As for ``write``.
        """
        return {}

    def release(self) -> None:
        """Release live memory after writing; the next snapshot may reuse the rest."""
        self.held.clear()


class _Views(Mapping[str, np.ndarray]):
    """Views tensors when they are asked for: some are copied for that."""

    def __init__(self, held: dict[str, Any], view: Callable[[Any], np.ndarray]) -> None:
        self._held, self._view = held, view

    def __getitem__(self, name: str) -> np.ndarray:
        return self._view(self._held[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


# Takes a directory.
KeepCompiled = Callable[[str], contextlib.AbstractContextManager[None]]
# Elements of tensors; None: not computed yet, or overwritten.
Peeked = Callable[[], list[np.ndarray] | None]


class Generators(Protocol):
    """The global random generators of a library."""

    def random_state(self) -> dict[str, Any]:
        """Their state, as plain Python values."""

    def set_random_state(self, state: dict[str, Any]) -> None:
        """Set what ``random_state`` returned."""


class Backend(Generators, Protocol):
    """What differs between the Keras backends.

    Attributes:
        name: As in Keras.
        spreads: Whether every process needs all tensors for a snapshot: it holds pieces
            of some, and is compared with the others.
    """

    name: ClassVar[str]
    spreads: ClassVar[bool]

    def snapshot(
        self, tensors: Mapping[str, Any], reuse: HeldTensors | None = None
    ) -> HeldTensors:
        """Hold the current bytes of tensors on the host. Training waits for this.

        Args:
            tensors: Name to backend tensor, backend variable or numpy array. Names
                hold letters, digits, ``_``, ``-`` and ``.`` only.
            reuse: An earlier snapshot that is no longer needed. Its memory may be
                overwritten, which is four times as fast as fresh memory.
        """

    def require_like(self, target: Any, value: Any) -> None:
        """Raise CheckpointMismatchError where ``assign`` would cast or broadcast."""

    def assign(self, target: Any, value: Any) -> None:
        """Set a Keras variable, backend variable or buffer in place.

        ``value`` is as ``backends.read`` returns it; of a tensor that is spread over
        devices, only what the devices of this process need is read. On torch it may
        also be as in ``HeldTensors.arrays``. No process waits for another.

        Shape and dtype were compared before; nothing is cast. A read-only array may be
        kept: nobody writes to it.
        """

    def peek(self, tensors: Mapping[str, Any], most: int) -> Peeked:
        """A few elements of tensors, spread over each, without waiting for a device.

        Args:
            tensors: As for ``snapshot``; of one that is spread over devices, the part
                of the first.
            most: Elements of each.

        Returns:
            A function that returns them as copies, in this order; None while they are
            being computed, and where a later step has overwritten them.
        """

    def keep_compiled(self) -> KeepCompiled | None:
        """What makes the backend keep what it compiles in a directory, while entered.

        None: it keeps nothing, or the user has chosen whether and where it does.
        """

    def versions(self) -> dict[str, str]:
        """Versions of the backend's libraries, which affect the bytes."""
