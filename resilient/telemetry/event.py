"""The schema of an event, shared by everything that reads ``events.jsonl``.

Other fields are for people and may hold anything.
"""

from msgspec import Struct, field

from resilient.serialization.schema import Count, NotFinite
from resilient.telemetry.heartbeat import Beat, ProcessId, Seconds


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One line of the file.

    Attributes:
        time: When it happened, in Unix seconds.
        event: What happened.
        attempt: Identifies the attempt of one process.
        host: Where it ran.
        pid: Its process id there.
        previous: The last heartbeat of the previous attempt (in "started").
        environment: Versions, by name (in "started").
        processes: The number of processes that train together (in "started").
        epoch: The number of epochs completed.
        batch: Batches completed in the next epoch.
        logs: Metrics by name (in "metrics": for the epoch that ended, or so far).
        repeated: Batches that were trained again with the same bits (in "repeated" and
            "not repeated").
        kind: How a process ended, in a word (in a supervisor's "exited").
    """

    time: Seconds
    event: str
    attempt: str
    host: str
    pid: ProcessId
    step: Count | None = None
    from_step: Count | None = None
    epoch: Count | None = None
    batch: Count | None = None
    seconds: Seconds = 0.0
    stall: Seconds = 0.0
    postponed: bool = False
    action: str | None = None
    why: str | None = None
    reason: str | None = None
    error: str | None = None
    message: str | None = None
    signature: str | None = None
    where: list[str] = field(default_factory=list)
    previous: Beat | None = None
    environment: dict[str, str] = field(default_factory=dict)
    processes: Count | None = None
    logs: dict[str, float | NotFinite] = field(default_factory=dict)
    nbytes: Count | None = None
    kind: str | None = None
    checkpoint: str | None = None
    repeated: Count | None = None

    @property
    def is_last_word(self) -> bool:
        """Whether it ends its attempt."""
        if self.event == "diverged":
            return self.action != "rollback"
        return self.event in ("ended", "preempted", "failed")
