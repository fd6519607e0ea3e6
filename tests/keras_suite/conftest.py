"""Loaded as a plugin into a run of Keras's own tests (see run.py).

Keras's test files import ``skip_if_backend`` from a module of this name. With
RESILIENT_SUITE=with, ``Trainer.fit`` of the backend becomes ``resilient.fit``.
"""

import functools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401  Must come before TensorFlow, or the process crashes.

# isort: split
import keras

# The class whose `fit` a model inherits; it goes by another name in Keras 3.16.
TRAINER: Any = next(
    c
    for c in keras.Model.__mro__
    if c.__module__ == f"keras.src.backend.{keras.backend.backend()}.trainer"
)


def skip_if_backend(given_backend: str, reason: str) -> pytest.MarkDecorator:
    """The marker that Keras's tests expect to import from their conftest."""
    return pytest.mark.skipif(keras.backend.backend() == given_backend, reason=reason)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "requires_trainable_backend: always true here")
    config.addinivalue_line("markers", "multi_device: needs several devices")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "multi_device" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="One device here"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append each phase's outcome to the file that run.py reads."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # the process that collects all reports writes them
    line = {
        "id": report.nodeid,
        "outcome": report.outcome,
        "when": report.when,
        "text": report.longreprtext if report.outcome == "failed" else "",
    }
    with Path(os.environ["RESILIENT_SUITE_REPORT"]).open("a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.fixture(autouse=True)
def our_fit(tmp_path_factory: Any, monkeypatch: Any) -> Iterator[None]:
    """Every ``fit`` of a test saves at every step, into a directory of its own."""
    if os.environ["RESILIENT_SUITE"] == "without":
        yield
        return
    import resilient

    original = TRAINER.fit
    running: set[int] = set()

    @functools.wraps(original)
    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        if id(model) in running:  # our own call of Keras's fit
            return original(model, *args, **kwargs)
        running.add(id(model))
        try:
            with tempfile.TemporaryDirectory() as directory:
                return resilient.fit(
                    model, *args, checkpoint_dir=directory, save_freq=1, **kwargs
                )
        finally:
            running.discard(id(model))

    monkeypatch.setattr(TRAINER, "fit", fit)
    yield
