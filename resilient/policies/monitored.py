"""Notices that a metric which ``keep=best(...)`` monitors is never logged."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from resilient.errors import message

_OF_VALIDATION = "val_"


class MonitoredMetrics:
    """The metrics that a keep policy monitors, until each has been logged once.

    Args:
        names: Their names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._missing = set(names)

    def error(
        self, logs: Mapping[str, float] | None, *, validates: bool
    ) -> ValueError | None:
        """The error to raise at the end of an epoch, if one can no longer be logged.

        Args:
            logs: What the epoch logged; an epoch without logs proves nothing.
            validates: Whether a later epoch may be validated if this one was not.
        """
        self._missing -= set(logs or ())
        if not logs:
            return None
        validated = any(name.startswith(_OF_VALIDATION) for name in logs)
        certain = validated or not validates
        for name in sorted(self._missing):
            if certain or not name.startswith(_OF_VALIDATION):
                return _unknown(name, list(logs))
        return None


def _unknown(name: str, logged: list[str]) -> ValueError:
    close = get_close_matches(name, logged, n=1, cutoff=0.5)
    hint = f'Did you mean "{close[0]}"?' if close else "Name one of these."
    return ValueError(
        message(
            f'keep=best(...) monitors "{name}", which the epoch did not log.',
            received=f"metrics {', '.join(logged)}",
            hint=f"{hint} Correct it and run again.",
        )
    )
