"""Decides when silence means that training hangs.

The limit is learned: ten times the longest silence between two heartbeats so far, since
a slow callback or a slow disk is not a hang. The supervisor measures time itself,
between two changes of the heartbeat's count, and ignores the times that training
writes, because clocks jump and machines sleep. A script that never sends a heartbeat is
not judged, unless the user says how long a start may take.
"""

from collections import Counter
from dataclasses import dataclass

from resilient.telemetry.heartbeat import Beat

DEFAULT_STARTUP = 1800.0
_MINIMUM = 60.0
_FACTOR = 10.0
_ENOUGH = 10  # signs in a phase, after which its usual silences are known
# The end of the first epoch brings new kinds of silence (callbacks, compilation of the
# validation step).
_FIRST_EPOCH = 5.0

_LEARNED_FROM = ("training", "validating", "replaying")


@dataclass(frozen=True)
class Hang:
    """A process that was silent for too long; times in seconds.

    Attributes:
        silent: Time since the last sign, or since the start.
        limit: What was allowed.
        beat: The last sign; None if there was none.
    """

    silent: float
    limit: float
    beat: Beat | None

    def __str__(self) -> str:
        if self.beat is None:
            where = "since it was started"
        else:
            where = f"in phase {self.beat.phase!r} at step {self.beat.step:,}"
        return (
            f"no heartbeat for {self.silent:,.1f} s {where} (the limit is "
            f"{self.limit:,.1f} s)"
        )


class HangLimit:
    """Watches one process, and its replacements after restarts.

    Args:
        fixed: Limit while training, in seconds; 0 detects no hangs; None learns it.
        startup: Limit until training begins, in seconds; None is the default, for
            scripts that have sent at least one heartbeat.
    """

    def __init__(self, fixed: float | None, startup: float | None) -> None:
        self._fixed = fixed
        self._startup = startup
        self._longest = 0.0
        self._signs: Counter[str] = Counter()
        self._scale = 1.0
        self._epoch_ended = False
        self._ever = False
        self._since = 0.0
        self._beat: Beat | None = None

    def start(self, now: float) -> None:
        """A new process begins."""
        self._since, self._beat = now, None

    def slept(self, seconds: float) -> None:
        """The supervisor or the training was suspended: this is not silence."""
        self._since += seconds

    def relax(self) -> None:
        """The limit may have been too short: double it from now on."""
        self._scale *= 2

    def silent(self, now: float) -> float:
        """Seconds since the last sign."""
        return now - self._since

    def observe(self, now: float, beat: Beat | None) -> Hang | None:
        """Record the heartbeat; return a hang if the silence is too long."""
        if beat is not None and _identity(beat) != _identity(self._beat):
            self._learn(now, beat)
            self._since, self._beat, self._ever = now, beat, True
            return None
        limit, silent = self._limit(), self.silent(now)
        if limit is None or silent <= limit:
            return None
        return Hang(silent, limit, self._beat)

    def _limit(self) -> float | None:
        """Seconds of silence allowed now; None for no limit."""
        phase = None if self._beat is None else self._beat.phase
        if self._fixed == 0 or phase == "ended":
            return None
        if phase in _LEARNED_FROM:
            if self._fixed is not None:
                return self._fixed
            if self._signs[phase] >= _ENOUGH:
                minimum = _MINIMUM * (1 if self._epoch_ended else _FIRST_EPOCH)
                return self._scale * max(minimum, _FACTOR * self._longest)
        if self._startup is None:
            return DEFAULT_STARTUP * self._scale if self._ever else None
        return self._startup

    def _learn(self, now: float, beat: Beat) -> None:
        before = self._beat
        self._signs[beat.phase] += 1
        if before is None or before.attempt != beat.attempt:
            return
        if before.phase in _LEARNED_FROM:
            self._longest = max(self._longest, self.silent(now))
            self._epoch_ended |= beat.epoch > before.epoch


def _identity(beat: Beat | None) -> tuple[object, ...] | None:
    return None if beat is None else (beat.attempt, beat.count, beat.phase)
