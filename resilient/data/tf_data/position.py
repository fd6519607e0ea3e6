"""The position of a tf.data pipeline, and the seeds in it."""

import warnings
from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

from resilient.data.source import SourceContext
from resilient.data.tf_data.lasting import LastingState
from resilient.serialization import JSON
from resilient.serialization.schema import MalformedError, well_formed

# Bytes in one checkpoint; above this there is a warning.
LARGE_STATE = 64 * 2**20

_Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Seeds = Annotated[list[_Seed], Meta(min_length=2, max_length=2)]


class Begun(TypedDict):
    """The state when an iterator was created."""

    lasting: LastingState
    random: JSON


class PipelinePosition(TypedDict):
    """Seeds: an operation and its two seeds, or just the two without a graph."""

    seeds: list[Annotated[list[str | _Seed | _Seeds], Meta(min_length=2, max_length=2)]]
    lasting: LastingState
    constants: NotRequired[dict[str, str]]
    state: NotRequired[Any]
    begun: NotRequired[Begun]
    first: NotRequired[str]
    caches: NotRequired[list[Any]]


class LargeStateWarning(UserWarning):
    """Checkpoints are large because of the data's state."""


def warn_if_large(position: JSON, argument: str) -> bool:
    """Warn if a position takes much room; return whether it does."""
    found = position.get("state", ()), *position.get("caches", ())
    parts = [len(each) for each in (*found, *position["lasting"]["variables"])]
    if sum(parts) <= LARGE_STATE:
        return False
    warnings.warn(
        f"The state of {argument} takes {sum(parts) / 2**20:,.0f} MB in each "
        "checkpoint: its shuffle buffers, caches and variables. With "
        "replay_data=True, checkpoints hold no shuffle buffers, and a resumed run "
        "draws the batches of the epoch again.",
        LargeStateWarning,
        stacklevel=2,
    )
    return True


def saved_seeds(settings: SourceContext) -> list[Any]:
    """The seeds in the position to resume from; none if that is for other data.

    Raises:
        MalformedError: It has seeds, but is not the position of a pipeline.
    """
    source = settings.saved.source if settings.saved else {}
    if "seeds" not in source:  # the fingerprint says what differs
        return []
    what = "the position of the data"
    seeds: list[Any] = well_formed(PipelinePosition, source, what)["seeds"]
    return seeds


def operations(seeds: list[Any]) -> list[Any]:
    """The operations of seeds; None if there are only the two."""
    return [op if isinstance(two, list) else None for op, two in seeds]


def require_begun(position: JSON) -> None:
    """Raise MalformedError if a position does not say how its iterator began."""
    if "begun" not in position:
        raise MalformedError("the position of the data: not how its iterator began")
