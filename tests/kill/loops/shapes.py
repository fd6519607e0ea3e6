"""Other shapes of loops: without an iterator, several in a row, on endless data."""

import random
from typing import Any

import keras
import numpy as np

from .parts import BATCH, arrays, jax_state, model, reached, trainer
from .registry import Make, loop


class Position:
    """A batch drawn by hand, and an object that knows how far that is."""

    def __init__(self) -> None:
        self.drawn: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": list(self.drawn)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


@loop("step@5", "step@11", save_freq=3, in_exact=True)
def without_an_iterator(make: Make) -> dict[str, Any]:
    """With generators of the user's own, and what is global."""
    net, optimizer = model(), keras.optimizers.Adam(0.01)
    numbers, own, position = np.random.default_rng(5), random.Random(6), Position()
    state = jax_state(net, optimizer)
    objects = {"net": net, "optimizer": optimizer, "numbers": numbers, "own": own}
    run = make(**objects, position=position, state=state)
    train = trainer(net, optimizer, run)
    x, y = arrays()
    with run:
        while run.step < 15:
            rows = numbers.integers(0, len(x), BATCH)
            loss = train((x[rows] + np.float32(own.random()), y[rows]))
            position.drawn.append(int(rows[0]) + int(np.random.randint(3)))
            run.log(loss=loss)
            reached(run.step)
            run.advance()
    return {**objects, "position": position, "state": run.state, "run": run}


@loop("step@2", "step@7", "step@9", "step@16", in_exact=True)
def two_loops(make: Make) -> dict[str, Any]:
    """The script changes something between them, other data follow."""
    net, optimizer = model(), keras.optimizers.SGD(0.05, momentum=0.5)
    rate = keras.Variable(1.0, trainable=False)
    state = jax_state(net, optimizer)
    run = make(net=net, optimizer=optimizer, rate=rate, state=state)
    train = trainer(net, optimizer, run)
    for _, step, batch in run.loop(arrays(), epochs=1, batch_size=BATCH):
        run.log(loss=train(batch))
        reached(step)
    rate.assign(rate * 0.5)
    np.random.rand()
    for _, step, batch in run.loop(arrays(1), epochs=3, batch_size=BATCH):
        run.log(loss=train(batch) * rate)
        reached(step)
    return {"net": net, "optimizer": optimizer, "rate": rate, "run": run}


@loop("step@6", "step@12", save_freq=[{"steps": 4}, {"epochs": 1}], in_exact=True)
def endless_data(make: Make) -> dict[str, Any]:
    """A generator that goes on from one epoch to the next, and a run that stops.

    It yields lists, and draws from the generator from which the loop draws as well.
    """
    net, optimizer = model(), keras.optimizers.Adam(0.01)
    state = jax_state(net, optimizer)
    run = make(net=net, optimizer=optimizer, state=state)
    train = trainer(net, optimizer, run)
    for _, step, batch in run.loop(_endless(), epochs=4, steps_per_epoch=5):
        assert type(batch) is list
        run.log(loss=train(batch) * np.random.rand())
        reached(step)
        if step == 16:
            run.stop()
    return {"net": net, "optimizer": optimizer, "run": run}


def _endless() -> Any:
    x, y = arrays()
    while True:
        rows = np.random.randint(0, len(x), BATCH)
        yield [x[rows], y[rows]]
