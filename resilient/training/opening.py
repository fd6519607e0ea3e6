"""Opens a training session: connects the processes and locks the directory."""

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

from resilient.distributed.group import Group
from resilient.distributed.rendezvous import join
from resilient.distributed.strategies import parallel_strategy, supported
from resilient.errors import NotSupportedError
from resilient.storage import layout, manifest
from resilient.training.options import RunOptions
from resilient.training.outcome import reported
from resilient.training.session import Session
from resilient.training.under_way import under_way
from resilient.training.uploads import awaited


@contextlib.contextmanager
def open_session(
    options: RunOptions, strategy: Any, *, by_hand: bool = False
) -> Iterator[Session]:
    """Set up everything that training needs.

    Args:
        options: What the run was asked for.
        strategy: The tf.distribute strategy; None on other backends.
        by_hand: Whether the loop is the user's own, and not Keras's ``fit``.

    Raises:
        DirectoryInUseError: Another run is using the directory.
        PeerLostError: The processes cannot find each other.
        NotSupportedError: They do not share the directory or the key, or training under
            the strategy cannot be resumed exactly.
    """
    supported.require_supported(strategy)
    parallel = parallel_strategy(strategy, by_hand=by_hand)
    store = options.store
    layout.make_directory(store.directory)
    anew = options.resume == "never"
    with contextlib.ExitStack() as opened:
        group = opened.enter_context(join(parallel, store.directory))
        if group.index == 0:  # it changes the directory for all
            opened.enter_context(store.opened(anew=anew))
        _require_same_key(group)
        session = Session(options, strategy, parallel, group)
        with (
            under_way(session),
            session.watch,
            reported(session),
            awaited(session),
            group.explained(),
            session.saving,
            session.digests,
        ):
            yield session


def _require_same_key(group: Group) -> None:
    """Raise if a process has a different key: its checkpoints would be refused."""
    challenge = group.broadcast("key", secrets.token_hex(16))
    said = group.gather("key", manifest.proof_of_key(challenge))
    others = [index for index, each in enumerate(said) if each != said[0]]
    if others := group.broadcast("other keys", others):
        raise NotSupportedError(
            f"{manifest.KEY} is not the same in all processes.",
            received="different from process 0, or set in only one of the two: "
            f"process {', '.join(map(str, others))}",
            hint=f"Set {manifest.KEY} to the same key for all processes.",
        )
