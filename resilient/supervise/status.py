"""The text of the status line."""

from collections import deque

from resilient.telemetry.heartbeat import Beat

_WINDOW = 20.0  # seconds


class Speed:
    """Steps per second over the latest heartbeats."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._attempt = ""

    def observe(self, now: float, beat: Beat) -> float | None:
        """Record a heartbeat; return the speed, once known."""
        rolled_back = self._seen and beat.step < self._seen[-1][1]
        if beat.attempt != self._attempt or rolled_back:
            self._seen.clear()
            self._attempt = beat.attempt
        if not self._seen or beat.step != self._seen[-1][1]:
            self._seen.append((now, beat.step))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        since, first = self._seen[0]
        steps = self._seen[-1][1] - first
        return steps / (now - since) if steps and now > since else None


def running(
    attempt: int, beat: Beat | None, speed: float | None, silent: float, told: bool
) -> str:
    """Status while a process runs.

    Args:
        attempt: Its number, from 1.
        beat: The last heartbeat.
        speed: Steps per second.
        silent: Seconds since the last heartbeat.
        told: Whether it was told to stop.
    """
    parts = [f"attempt {attempt}"]
    if beat is None:
        parts.append("no heartbeat yet")
    else:
        parts += [beat.phase, f"step {beat.step:,}", f"epoch {beat.epoch + 1:,}"]
        if speed is not None:
            parts.append(f"{speed:.3g} steps/s")
        parts.append(f"heartbeat {silent:,.0f} s ago")
    restarts = attempt - 1
    parts.append(f"{restarts} restart{'' if restarts == 1 else 's'}")
    if told:
        parts.append("told to stop")
    return " · ".join(parts)
