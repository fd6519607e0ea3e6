"""Compares a run with a checkpoint's, and says in words what differs.

A different model, optimizer or dataset means a different run: a resume is refused and
the differences are listed, without those that only follow from others. Settings that
training can continue with warn once, and the script's value wins.
"""

import re
from collections.abc import Container, Sequence

from resilient.errors import warn_not_exact
from resilient.serialization import JSON
from resilient.state.data_comparison import data_differences
from resilient.state.difference import Difference, differences, edits, line
from resilient.state.settings import is_referred
from resilient.state.training_only import is_training_only

_LAYER_SETTING = re.compile(r"(?:layer|operation) \d+ (?:.* )?\((\w+)\)\.(\w+).*")
_CODE = re.compile(r"^(\S+) [0-9a-f]{8}$")  # a function, and the checksum of its code
_METRICS = ("metrics", "weighted_metrics")
_POLICY = ".dtype_policy"
_OF_BACKENDS = ("tensorflow", "jax", "jaxlib", "torch", "jit_compile")
_SPREAD = ("device mesh", "replicas", "sums between processes")


def identity_differences(
    saved: JSON, live: JSON, *, layers: bool = True, fits: bool = True
) -> list[Difference]:
    """The differences that make it a different run.

    Args:
        saved: The fingerprint in the checkpoint.
        live: The fingerprint of this run.
        layers: Whether the layers are known; otherwise they are left out.
        fits: Whether the weights have the same shapes, so that these layers could
            continue with them.
    """
    theirs, ours = saved["identity"], live["identity"]
    # Others are worded separately, or cannot be compared yet.
    own = ("data ", "inputs of ", "layers", "objects", "connections")
    mine, yours = (
        {k: v for k, v in each.items() if not k.startswith(own)}
        for each in (theirs, ours)
    )
    pair = mine.pop("optimizer", None), yours.pop("optimizer", None)
    backends = mine.pop("backend", None), yours.pop("backend", None)
    found = [Difference("run", each) for each in differences(mine, yours)]
    if backends[0] != backends[1]:
        text = "backend: the checkpoint was trained on {}, this run trains on {}"
        found.append(Difference("backend", text.format(*backends)))
    if repr(pair[0]) != repr(pair[1]):
        was, now = (
            " of ".join(map(str, each if isinstance(each, list) else [each]))
            for each in pair
        )
        text = f"optimizer: the checkpoint has {was}, this run has {now}"
        found.append(Difference("optimizer", text))
    if layers:
        found += _layer_differences(saved, live, "config" if fits else "run")
    return found + data_differences(theirs, ours)


def metric_differences(saved: JSON, live: JSON) -> list[Difference]:
    """How the settings of metrics differ, whose state depends on them."""
    every = {**saved["settings"], **live["settings"]}
    names = {name for name in every if _is_of_metric(name)}
    lines = differences(*_picked(saved, live, names))
    return [Difference("metrics", line) for line in lines]


def _is_of_metric(name: str) -> bool:
    referred = is_referred(name) or name.endswith(": code")
    return name.startswith(_METRICS) and not referred


def _layer_differences(saved: JSON, live: JSON, of: str) -> list[Difference]:
    theirs, ours = saved["identity"], live["identity"]
    was, now = theirs.get("layers", []), ours.get("layers", [])
    if was != now:
        known = isinstance(was, list) and all(isinstance(each, str) for each in was)
        lines = _edits(was, now) if known else [line("layers", was, now)]
        return [Difference("run", each) for each in lines]
    inputs = (k for k in {**theirs, **ours} if k.startswith("inputs of "))
    found = [
        f"{name.removeprefix('inputs of ')}: other inputs or constants than in the "
        "checkpoint"
        for name in inputs
        if repr(theirs.get(name)) != repr(ours.get(name))
    ]
    function = _of_function(saved, live)
    policies = {name for name in function if name.endswith(_POLICY)}
    found += differences(*_picked(saved, live, policies))
    settings = differences(*_picked(saved, live, function - policies))
    return [
        *(Difference("run", line) for line in found),
        *(Difference(of, line) for line in settings),
    ]


def _of_function(saved: JSON, live: JSON) -> set[str]:
    """Names of settings that determine the function that the model computes."""
    theirs, ours = saved["settings"], live["settings"]
    found = set[str]()
    for name in {**theirs, **ours}:
        layer = _LAYER_SETTING.fullmatch(name)
        # Another Keras version may name things that were always there.
        both = name in theirs and name in ours
        if is_referred(name):
            continue
        if layer and (both or theirs.get("keras") == ours.get("keras")):
            kind, setting = layer.groups()
            if not is_training_only(kind, setting):
                found.add(name)
    return found


def _settings(saved: JSON, live: JSON) -> tuple[JSON, JSON]:
    """The settings of both, without code where another Python compiled it."""
    both = saved["settings"], live["settings"]
    if both[0].get("python") == both[1].get("python"):
        return both
    theirs, ours = (
        {
            name: _CODE.sub(r"\1", x) if isinstance(x, str) else x
            for name, x in y.items()
        }
        for y in both
    )
    return theirs, ours


def _picked(saved: JSON, live: JSON, names: Container[str]) -> tuple[JSON, JSON]:
    theirs, ours = (
        {name: x for name, x in each.items() if name in names}
        for each in _settings(saved, live)
    )
    return theirs, ours


def refrozen(saved: JSON, live: JSON) -> list[str]:
    """Which layers are frozen in only one of two runs, in words; for equal layers."""
    now: dict[bool, int] = {True: 0, False: 0}
    for name, value in live["settings"].items():
        was = saved["settings"].get(name)
        if name.endswith(".trainable") and isinstance(was, bool) and was is not value:
            now[bool(value)] += 1
    return [
        f"{n} layer{'s are' if n > 1 else ' is'} {a} that {'were' if n > 1 else 'was'} "
        f"{b}"
        for n, a, b in (
            (now[True], "trainable", "frozen"),
            (now[False], "frozen", "trainable"),
        )
        if n
    ]


def warn_of_settings(saved: JSON, live: JSON, *, optimizer: bool = True) -> None:
    """Warn about non-blocking changes; arguments of ``changed_settings``."""
    warn_of(changed_settings(saved, live, optimizer=optimizer))
    if unknown := live["identity"].get("connections"):
        warn_not_exact("this cannot be compared with the checkpoint", [unknown])


def warn_of(changed: Sequence[str]) -> None:
    """Warn about changed settings, a line each."""
    if changed:
        warn_not_exact(
            "these settings changed since the checkpoint; training continues with "
            "those of this script",
            changed,
        )


def changed_settings(
    saved: JSON, live: JSON, *, optimizer: bool = True, but: Sequence[str] = ()
) -> list[str]:
    """Non-blocking changes, a line each.

    Args:
        saved: The fingerprint in the checkpoint.
        live: The fingerprint of this run.
        optimizer: Whether the settings of two optimizers can be compared.
        but: Names of settings to leave out.
    """
    backends = (each["identity"].get("backend") for each in (saved, live))
    elsewhere = len(set(backends)) > 1  # consequences of that are not listed
    left_out = {*_of_function(saved, live), *_SPREAD, *but}
    if elsewhere:
        left_out |= {*_OF_BACKENDS}
    unlike = () if optimizer else ("optimizer",)
    theirs, ours = (
        {
            k: v
            for k, v in each.items()
            if k not in left_out and not (k.startswith(unlike) or _is_of_metric(k))
        }
        for each in _settings(saved, live)
    )
    changed = differences(theirs, ours) + _of_devices(saved, live)
    if elsewhere:
        return changed
    return changed + differences(saved["determinism"], live["determinism"])


def _of_devices(saved: JSON, live: JSON) -> list[str]:
    """The numbers of devices or replicas of the runs, if they differ."""
    was, now = (_devices(each["settings"]) for each in (saved, live))
    line = f"devices: the checkpoint was trained on {was}, this run trains on {now}"
    return [line] if was != now else []


def _devices(settings: JSON) -> str:
    mesh, replicas = settings.get("device mesh"), settings.get("replicas")
    found = "one device"
    if isinstance(mesh, list):
        found = f"a mesh of {' x '.join(map(str, mesh))} devices"
    elif replicas:
        found = f"{replicas} replicas"
    several = settings.get("sums between processes")
    if several is None:
        return found
    return f"{found} in {'several processes' if several else 'one process'}"


def _edits(was: Sequence[str], now: Sequence[str]) -> list[str]:
    found = []
    for what, i, j in edits(was, now):
        if what == "replace":
            text = f"{i}: the checkpoint has {_a(was[i])}, this model has {_a(now[j])}"
        elif what == "insert":
            text = f"{j}: this model has {_a(now[j])} that the checkpoint does not have"
        else:
            text = f"{i}: the checkpoint has {_a(was[i])} that this model does not have"
        found.append(f"layer {text}")
    return found


def _a(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"
