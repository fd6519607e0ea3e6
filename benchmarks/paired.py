"""Samples beside the limits that were measured at the same time."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np


def summary(samples: Sequence[float], limits: Sequence[float]) -> dict[str, Any]:
    """Medians; of the paired ratios median and quartiles; the ratio of the shortest.

    Args:
        samples: Measured.
        limits: What stands below each in its ratio, measured next to it.
    """
    ratios = [sample / limit for sample, limit in zip(samples, limits, strict=True)]
    return {
        "median": statistics.median(samples),
        "limit": statistics.median(limits),
        "ratio": statistics.median(ratios),
        "quartiles": np.quantile(ratios, (0.25, 0.5, 0.75)).tolist(),
        "of_shortest": min(samples) / min(limits),
        "samples": list(samples),
        "limits": list(limits),
    }
