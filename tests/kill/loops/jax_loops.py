"""Loops of JAX alone: pytrees."""

from typing import Any

import numpy as np

from .parts import reached
from .registry import Make, loop


@loop("step@5", "step@13", in_exact=True)
def tree_with_plain_values(make: Make) -> dict[str, Any]:
    """Numbers and arrays of NumPy stay what they are; a generator of NumPy is named."""
    numbers = np.random.default_rng(3)
    run = make(state={"count": 0, "mean": np.zeros(3), "none": None}, numbers=numbers)
    with run:
        while run.step < 18:
            state = run.state
            state["mean"] += numbers.normal(size=3)  # in place
            run.state = {**state, "count": state["count"] + 1}
            run.log(mean=state["mean"].mean())
            reached(run.step)
            run.advance()
    return {"state": run.state, "numbers": numbers, "run": run}
