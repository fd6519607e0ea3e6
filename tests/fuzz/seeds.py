"""What is mutated beside checkpoints: small files as this library writes them.

The corpus has what was changed of these, which therefore stay as they are.
"""

import json
import random

import numpy as np

from resilient.serialization import rng
from resilient.serialization.json_values import encode

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
_DTYPES = ["float32", "<f8", ">i4", "<U4", "|S3", "bfloat16", "[('a', '<f4', (2,))]"]
_DTYPES += ["datetime64[ns]", "[('a', [('b', '|u1')]), ('c', '<c8')]", "|V3", "bool"]


def samples() -> dict[str, bytes]:
    """By kind."""
    generators = (
        *(random.Random(3), np.random.default_rng(3), np.random.RandomState(3)),
        *(np.random.Philox(3), np.random.SFC64(3), np.random.SeedSequence(3)),
    )
    skip = {"start": 8, "stop": 10, "bad": 9, "why": "a NaN"}
    reason = {
        "kind": "damaged",
        "text": "run.json is missing",
        "time": "",
        "open": True,
    }
    lock = {"host": "one", "pid": 17, "started": "2026-01-01T00:00:00Z"}
    values = {
        "generators": [rng.state(each) for each in generators],
        "dtypes": _DTYPES,
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


def _tagged(tag: str, content: object) -> dict[str, object]:
    return {"!": tag, "v": content}


_F4 = {"dtype": "<f4", "shape": [2], "base64": "AACAPwAAAEA="}
_F8 = {"dtype": "<f8", "shape": [1], "base64": "AAAAAAAA8D8="}
_DAYS = _tagged("timedelta", [1, 0, 0])
_HOUR = _tagged("timedelta", [0, 3600, 0])
_GENERATORS = (random.Random(3), np.random.default_rng(3), np.random.RandomState(3))
VALUES = json.dumps(
    [
        *(None, 1, 0.5, "text", [1, [2]]),
        _tagged("int", "-0x8000000000000000000"),
        _tagged("float", "000000000000f87f"),
        _tagged("str", "ANgAAA=="),
        _tagged("bytes", "AAE="),
        _tagged("list", _tagged("array", _F8)),
        _tagged("dict", [["a", 1], [_tagged("tuple", [1, 2]), [0.5]]]),
        _tagged("array", _F4 | {"order": "F"}),
        _tagged("array", {"dtype": "float64", "shape": [400], "array": "a"}),
        _tagged("array", {"dtype": "|u1", "shape": [3, 2], "array": "b"}),
        _tagged(
            "scalar", _tagged("array", {"dtype": "<i2", "shape": [], "base64": "AQA="})
        ),
        _tagged("objects", [[2], [None, "x"]]),
        _tagged("dtype", "[('a', '<f4')]"),
        _tagged("import", "builtins:list"),
        *(
            _tagged("set", [1, 2]),
            _tagged("frozenset", []),
            _tagged("complex", [0.5, 1.0]),
        ),
        *(_tagged("slice", [0, None, 2]), _tagged("range", [0, 9, 2])),
        *(_tagged("Fraction", [1, 3]), _DAYS),
        *(_tagged("Decimal", ["0.1"]), _tagged("timezone", [_HOUR, None])),
        _tagged("UUID", ["12345678-1234-5678-1234-567812345678"]),
        *(_tagged("PurePosixPath", ["a/b"]), _tagged("PosixPath", ["a"])),
        _tagged("bytearray", [_tagged("bytes", "AAE=")]),
        _tagged("date", [2026, 1, 1]),
        _tagged("datetime", [2026, 1, 1, 0, 0, 0, 0, None, 0]),
        _tagged("time", [1, 2, 3, 4, None, 0]),
        _tagged("deque", [[1, 2], 3]),
        _tagged("OrderedDict", [_tagged("dict", [["a", 1]])]),
        _tagged("Counter", [_tagged("dict", [["a", 1]])]),
        _tagged(
            "defaultdict", [_tagged("import", "builtins:list"), _tagged("dict", [])]
        ),
        *(encode(each, {}, "x") for each in _GENERATORS),
    ]
).encode()
