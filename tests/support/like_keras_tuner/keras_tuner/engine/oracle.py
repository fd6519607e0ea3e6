"""What chooses the values of a trial."""

import random


class Oracle:
    """Draws a learning rate for each trial."""

    def __init__(self, max_trials=3, seed=None):
        self.seed = seed or random.randint(1, 10_000)
        self.max_trials, self.trials, self.drawn = max_trials, {}, 0

    def create_trial(self):
        self.drawn += 1
        rates = random.Random(self.seed + self.drawn)
        return f"{len(self.trials)}", rates.uniform(0.01, 0.1)
