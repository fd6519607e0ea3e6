"""What is trained in the kill suite; small, and together every feature of ``fit``."""

from . import (
    arguments,
    callbacks,
    inputs,
    mirrored,
    models,
    sources_grain,
    sources_pydataset,
    sources_python,
    sources_tf_data,
    sources_torch,
    steps,
)
from .registry import SCENARIOS, Case, Scenario

__all__ = [
    "SCENARIOS",
    "Case",
    "Scenario",
    "arguments",
    "callbacks",
    "inputs",
    "mirrored",
    "models",
    "sources_grain",
    "sources_pydataset",
    "sources_python",
    "sources_tf_data",
    "sources_torch",
    "steps",
]
