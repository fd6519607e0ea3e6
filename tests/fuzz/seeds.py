"""What is mutated beside checkpoints: small files as this library writes them.

The corpus has what was changed of these, which therefore stay as they are.
"""

import json

_BEAT = {
    "attempt": "0123456789ab",
    "host": "one",
    "pid": 17,
    "directory": "/runs/one",
    "time": 1700000000.5,
    "count": 40,
    "phase": "training",
    "step": 9,
    "epoch": 1,
    "batch": 3,
}
_SAID = {"attempt": "0123456789ab", "host": "one", "pid": 17}
_EVENTS = (
    {"event": "started", "time": 1700000000.0, "previous": _BEAT},
    {"event": "restored", "time": 1700000001.0, "step": 6, "seconds": 0.5},
    {"event": "metrics", "time": 1700000001.5, "step": 8, "logs": {"loss": 0.5}},
    {"event": "saved", "time": 1700000002.0, "step": 9, "seconds": 0.2, "stall": 0.01},
    {"event": "diverged", "time": 1700000003.0, "step": 9, "action": "rollback"},
    {"event": "rolled back", "time": 1700000004.0, "step": 6, "discarded": [9]},
    {"event": "preempted", "time": 1700000005.0, "step": 9, "reason": "SIGTERM"},
    {"event": "started", "time": 1700000006.0, "attempt": "ba9876543210"}
    | {"environment": {"keras": "3.15.1"}, "processes": 2},
    {"event": "exited", "time": 1700000008.0, "attempt": "s", "kind": "killed"},
    {"event": "failed", "time": 1700000009.0, "error": "ValueError", "where": ["a:1"]},
)


def samples() -> dict[str, bytes]:
    """By kind."""
    skip = {"start": 8, "stop": 10, "bad": 9, "why": "a NaN"}
    reason = {
        "kind": "damaged",
        "text": "run.json is missing",
        "time": "",
        "open": True,
    }
    lock = {"host": "one", "pid": 17, "started": "2026-01-01T00:00:00Z"}
    values = {
        "heartbeat": _BEAT,
        "rollbacks": [skip, skip | {"start": 20, "stop": 24}],
        "lock": lock,
        "reason": reason,
    }
    found = {name: json.dumps(value).encode() for name, value in values.items()}
    found["events"] = b"".join(
        json.dumps(_SAID | event).encode() + b"\n" for event in _EVENTS
    )
    return found
