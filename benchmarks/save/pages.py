"""The tables of the documentation that come from these measurements."""

from collections.abc import Iterator, Mapping
from typing import Any

import figures

NAME = "save"
_OFTEN = 50  # batches between saves
_LARGER = 10  # MB: of the fits after those of the smallest model
_SHOWN = 100  # MB: all subjects at this size, and ours at the others
_OURS = "**keras-resilient**"
_NAMES = {
    "resilient": _OURS,
    "resilient.fit": _OURS,
    "resilient.fit, no save due": "keras-resilient, no save due",
    "empty on_train_batch_end": "an empty callback",
}
_VERSIONS = {"keras": "Keras", "numpy": "NumPy"} | {
    "tensorflow": "TensorFlow",
    "tensorflow-cpu": "TensorFlow",
    "jax": "JAX",
    "torch": "torch",
    "orbax-checkpoint": "Orbax",
}


def write() -> None:
    """Make them anew, from the newest report of each backend."""
    reports = figures.kept(NAME)
    figures.show("benchmarks.md", "save-machine", _machines(reports))
    figures.show("benchmarks.md", "save-subjects", _subjects(reports))
    figures.show("benchmarks.md", "save-sizes", _sizes(reports))
    figures.show("training-overhead.md", "save-added", _added(reports))
    small = f"`fit` with a save every {_OFTEN} batches / `model.fit`"
    figures.show("training-overhead.md", "save-epochs", _epochs(reports, 0, small))
    larger = f"the same with {_LARGER} MB of state"
    figures.show("training-overhead.md", "save-larger", _epochs(reports, 1, larger))


def _machines(reports: Mapping[str, Any]) -> Iterator[str]:
    for backend, report in reports.items():
        facts = report["machine"]
        found = {
            shown: facts["versions"][name]
            for name, shown in _VERSIONS.items()
            if name in facts["versions"]
        }
        libraries = ", ".join(f"{name} {version}" for name, version in found.items())
        yield (
            f"* {figures.BACKENDS[backend]}: {facts['cores']} cores of {facts['cpu']}, "
            f"{facts['memory_gb']} GB, {facts['file_system']}; {libraries}; "
            f"{report['repeats']} pairs."
        )


def _subjects(reports: Mapping[str, Any]) -> list[str]:
    head = ["", "stall / memcpy", "whole save / (write + fsync)"]
    head += ["restore / warm read", "one flipped bit", "extra memory / state"]
    head[0] = f"{_SHOWN} MB of state"
    return figures.table(head, _rows_of_subjects(reports))


def _rows_of_subjects(reports: Mapping[str, Any]) -> Iterator[list[str]]:
    for backend, report in reports.items():
        for found in report["components"]:
            if found["megabytes"] != _SHOWN:
                continue
            limits = {name: f"{s * 1e3:.1f} ms" for name, s in found["limits"].items()}
            took = (
                f"memcpy {limits['memcpy']}, write + fsync {limits['write_fsync']}, "
                f"warm read {limits['warm_read']}"
            )
            yield [f"*{backend}: {took}*", *[""] * 5]
            for name, one in found["subjects"].items():
                yield [
                    _NAMES.get(name, name) + ("" if one["flushes"] else " ¹"),
                    _with_ms(one["stall"]),
                    figures.ratio(one["save"]),
                    figures.ratio(one["restore"]),
                    "refused" if one["sees_damage"] else "not noticed",
                    f"{one['memory']['ratio']:.2f}" if one["memory"] else "",
                ]


def _sizes(reports: Mapping[str, Any]) -> list[str]:
    rows = []
    for backend, report in reports.items():
        for found in report["components"]:
            one = found["subjects"]["resilient"]
            times = [_with_ms(one[of]) for of in ("stall", "save", "restore")]
            memory = f"{one['memory']['ratio']:.2f}" if one["memory"] else ""
            size = f"{found['megabytes']:g} MB, {figures.BACKENDS[backend]}"
            rows.append((found["megabytes"], [size, *times, memory]))
    head = ["", "stall / memcpy", "whole save / (write + fsync)"]
    head += ["restore / warm read", "extra memory / state"]
    return figures.table(head, [row for _, row in sorted(rows, key=lambda r: r[0])])


def _added(reports: Mapping[str, Any]) -> list[str]:
    found = {
        backend: each["ways"]
        for backend, report in reports.items()
        for each in report["fits"]["added"]
        if abs(each["nbytes"] / 1e6 - _SHOWN) < _SHOWN / 4
    }
    what = f"{_SHOWN} MB, what a save adds to training / memcpy"
    head = [what, *(figures.BACKENDS[b] for b in found)]
    return figures.table(head, _by_way(found, digits=1))


def _epochs(reports: Mapping[str, Any], number: int, what: str) -> list[str]:
    """Of one model: the smallest comes first."""
    every = {b: report["fits"]["epochs"][number:] for b, report in reports.items()}
    found = {b: each[0] for b, each in every.items() if each}  # of quick steps only
    head = [what, *(figures.BACKENDS[b] for b in found)]
    steps = ["*step*", *(f"*{each['step'] * 1e3:.1f} ms*" for each in found.values())]
    rows = _by_way({b: each["ways"] for b, each in found.items()}, digits=2)
    return figures.table(head, [steps, *rows])


def _by_way(found: Mapping[str, Any], digits: int) -> Iterator[list[str]]:
    """A row for each way to save, a column for each backend."""
    for way in dict.fromkeys(way for ways in found.values() for way in ways):
        cells = [_spread(ways.get(way), digits) for ways in found.values()]
        name = way.removesuffix(f", every {_OFTEN}")
        yield [_NAMES.get(name, name), *cells]


def _spread(one: Mapping[str, Any] | None, digits: int) -> str:
    if one is None:
        return ""
    low, middle, high = (f"{value:.{digits}f}" for value in one["quartiles"])
    return f"{middle} ({low} to {high})"


def _with_ms(one: Mapping[str, Any]) -> str:
    return f"{figures.ratio(one)[:-1]}; {one['median'] * 1e3:.1f} ms)"
