"""Compares a run with a checkpoint's, and says in words what differs.

The policy is here and nowhere else: a different model, optimizer or dataset means a
different run, which is refused unless it is allowed by name; the rest of the settings
only warn, and the script's value wins.

For settings of layers the rule is: every constructor argument belongs to the function
that the layer computes, and with a different value it is a different layer. The
exceptions are listed here: settings that only regularise or train, and those that
select how the same result is computed. For layers that do nothing outside training, all
settings are exceptions.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

from resilient.serialization import JSON
from resilient.state.settings import REFERRED

_LAYER_SETTING = re.compile(r"(?:layer|operation) \d+ (?:.* )?\((\w+)\)\.(\w+).*")
_OF_LAYERS = ("layer ", "operation ", "connections of ")
_CODE = re.compile(r"^(\S+) [0-9a-f]{8}$")  # a function, and the checksum of its code
_OF_WEIGHTS = ("dtype_policy", "trainable")  # their types, and which are trained
_METRICS = ("metrics", "weighted_metrics")
_OF_BACKENDS = {"tensorflow", "jax", "jaxlib", "torch", "jit_compile"}

# Settings that only train, in any layer, including custom ones.
_TRAINING_ONLY = re.compile(
    # Dropout and noise: names in Keras and in models built on it.
    r"rate|\w*drop(out|_path|_rate|_prob)\w*|noise_shape|stddev|stochastic_depth\w*"
    # Added to the loss, done after a step, or done once at the start.
    r"|\w*(regularizer|constraint|initializer)|l1|l2"
    # Moving averages, whose contents are variables.
    r"|momentum|synchronized|renorm\w*"
    r"|seed|module"
    # The same function in another kernel.
    r"|unroll|implementation|use_cudnn|flash_attention|autocast"
)
_TRAINING_ONLY_LAYERS = re.compile(
    r"(Alpha|Gaussian|Spatial)?Dropout(1D|2D|3D)?|GaussianNoise|ActivityRegularization"
    r"|Random(?!Crop)[A-Z]\w*|MixUp|CutMix|AugMix|RandAugment"
)
SETTINGS = "settings"  # in ``Difference.of``: only warns


@dataclass(frozen=True)
class Difference:
    """One difference, in words.

    Attributes:
        of: What differs: ``"data"``, ``"optimizer"``, ``"config"``, ``"run"``...
        line: How it differs.
        group: The variables that start fresh if it is allowed: ``"optimizer.net"``.
    """

    of: str
    line: str
    group: str = ""


def compare(
    saved: JSON, live: JSON, *, built: bool = True, fits: bool = True
) -> list[Difference]:
    """How two fingerprints differ; differences of ``SETTINGS`` only warn.

    Args:
        saved: The fingerprint in the checkpoint.
        live: The fingerprint of this run.
        built: Whether layers and settings are known; otherwise they are left out.
        fits: Whether the weights have the same shapes, so that these layers could
            continue with them.
    """
    was, now = (each["identity"].get("layers", []) for each in (saved, live))
    places = edits(was, now) if built else ()
    found = [Difference("run", line(f"layer {i}", *pair)) for i, *pair in places]
    theirs, ours = _comparable(saved, live, built=built, layers=built and not found)
    identity = saved["identity"] | live["identity"]
    # Another Keras version may name things that were always there.
    same = theirs.get("keras") == ours.get("keras")
    for name in changed(theirs, ours):
        pair = theirs.get(name), ours.get(name)
        of = _of(name, "run" if name in identity else SETTINGS)
        if of == "config" and not same and None in pair:
            of = SETTINGS
        elif of == "config" and not fits:
            of = "run"
        found.append(Difference(of, line(name, *pair)))
    return found


def data_differences(saved: JSON, live: JSON) -> list[Difference]:
    """How the facts of two runs whose names begin with ``data`` differ."""
    both = ({"identity": each, "settings": {}} for each in (saved, live))
    return compare(*both, built=False)


def is_training_only(layer: str, setting: str) -> bool:
    """Whether a layer of this class computes the same with another value of this."""
    names = _TRAINING_ONLY.fullmatch(setting)
    return names is not None or _TRAINING_ONLY_LAYERS.fullmatch(layer) is not None


def _comparable(
    saved: JSON, live: JSON, *, built: bool, layers: bool
) -> tuple[JSON, JSON]:
    """The facts of both in one mapping each, without what cannot be compared."""
    parts = ["settings", "determinism"] if built else []
    left_out = {"objects", "layers"}
    if saved["identity"].get("backend") != live["identity"].get("backend"):
        parts, left_out = parts[:1], left_out | _OF_BACKENDS  # follow from that
    pythons = (each["settings"].get("python") for each in (saved, live))
    code = len({*pythons}) == 1  # of one compiler
    theirs, ours = (
        {
            "data" if name == "data kind" else name: _plain(fact, code=code)
            for part in ("identity", *parts, "identity")
            for name, fact in each[part].items()
            if name not in left_out and (layers or not name.startswith(_OF_LAYERS))
        }
        for each in (saved, live)
    )
    return theirs, ours


def _plain(fact: Any, *, code: bool) -> Any:
    """A fact for people; without checksums of code that cannot be compared."""
    if isinstance(fact, dict) and fact.keys() == {"shape", "dtype", "xxh3_128"}:
        shape = tuple(fact["shape"])
        return f"{shape} {fact['dtype']}, checksum {fact['xxh3_128'][:16]}"
    return fact if code or not isinstance(fact, str) else _CODE.sub(r"\1", fact)


def _of(name: str, of: str) -> str:
    """What a fact belongs to, as in ``Difference.of``; by default ``of``."""
    if name.partition(" ")[0] == "data":
        return "batch_size" if name == "data batch_size" else "data"
    if name in ("backend", "optimizer"):
        return name
    if REFERRED.fullmatch(name):
        return SETTINGS
    if name.startswith(_METRICS):
        return SETTINGS if name.endswith(": code") else "metrics"
    layer = _LAYER_SETTING.fullmatch(name)
    if layer and layer[2] in _OF_WEIGHTS:
        return "run"
    if layer and not is_training_only(*layer.groups()):
        return "config"
    return of


def changed(saved: JSON, live: JSON) -> list[str]:
    """The names of the facts that differ, but for those inside of what differs.

    Args:
        saved: The facts of a checkpoint, by name.
        live: The facts of this run.
    """
    found: list[str] = []
    for name in saved | live:
        inside = name.startswith(tuple(f"{x}{end}" for x in found for end in ".[ :"))
        # As text, nan equals itself, and True is not 1.
        if not inside and repr(saved.get(name)) != repr(live.get(name)):
            found.append(name)
    return found


def differences(saved: JSON, live: JSON) -> list[str]:
    """The same, a line each."""
    names = changed(saved, live)
    return [line(name, saved.get(name), live.get(name)) for name in names]


def line(name: str, was: Any, now: Any) -> str:
    """How one fact differs."""
    return f"{name}: the checkpoint has {short(was)}, this run has {short(now)}"


def short(value: Any) -> str:
    """A fact in words."""
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def edits(
    was: Sequence[str], now: Sequence[str]
) -> Iterator[tuple[int, str | None, str | None]]:
    """The edits that turn one list of names into the other.

    Yields:
        A place in the first list, what is there, and what replaces it.
    """
    matcher = SequenceMatcher(None, was, now, autojunk=False)
    for what, i, end, j, stop in matcher.get_opcodes():
        if what != "equal":
            pairs = zip_longest(was[i:end], now[j:stop])
            yield from ((i + k, *pair) for k, pair in enumerate(pairs))
