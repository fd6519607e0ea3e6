"""Sees that processes draw the batches that they should.

Two processes that divide batches and shuffle in different orders would train some
samples twice and others not at all; two that are given parts of the data, and were
given the same part, would do all work twice. Nothing else would tell.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from resilient.data.batches import checksum
from resilient.distributed.group import Group
from resilient.errors import DataNotResumableError, describe


def compared(
    batches: Iterable[Any],
    name: str,
    group: Group,
    shard: int = 0,
    warn: Callable[[str], None] | None = None,
) -> Iterator[Any]:
    """The batches, the first one compared with that of the other processes.

    Args:
        batches: What this process draws.
        name: What the data is called in messages.
        group: The processes.
        shard: Which part of the data this process draws; those of equal number draw
            the same.
        warn: Called where parts that should be others are the same.

    Raises:
        DataNotResumableError: Processes drew different ones.
    """
    for number, batch in enumerate(batches):
        if number == 0:
            said = group.collect(f"first of {name}", [shard, checksum(batch)])
            others, twins = group.tell(f"others of {name}", _judged(said))
            if others:
                raise _different(others, name)
            if twins and warn is not None:
                warn(
                    f"Processes {twins} begin with the same batch of `{name}` as "
                    "another process: on JAX each process trains all that it is "
                    "given. Give each its own part, or a tf.data.Dataset, which "
                    "keras.distribution divides (auto_shard_dataset)."
                )
        yield batch


def _judged(said: list[tuple[int, str]]) -> tuple[list[int], list[int]]:
    """Processes that should have what another has, and those that should not."""
    first: dict[int, str] = {}
    others, twins, seen = list[int](), list[int](), set[str]()
    for process, (shard, digest) in enumerate(said):
        if shard not in first:
            first[shard] = digest
            if digest in seen:
                twins.append(process)
            seen.add(digest)
        elif first[shard] != digest:
            others.append(process)
    return others, twins


def _different(others: list[int], name: str) -> DataNotResumableError:
    return DataNotResumableError(
        describe(
            "The processes draw different batches, and should draw the same: each "
            "trains its rows of them. Some samples would be trained twice, and others "
            "not at all.",
            f"`{name}`: processes {others} begin with another batch than those before",
            "Give what shuffles the same seed in all processes (a DataLoader a "
            "generator), or a DataLoader a torch.utils.data.DistributedSampler.",
        )
    )
