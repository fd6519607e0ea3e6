"""Sources of data: Grain datasets and loaders."""

from typing import Any

import numpy as np

from .parts import compiled, images, noisy
from .registry import Case, source


def case(data: Any, **kwargs: Any) -> Case:
    """Three epochs on a Grain dataset, silent."""
    defaults = {"epochs": 3, "verbose": 0}
    return Case(compiled(noisy()), (data,), defaults | kwargs)


def samples() -> list[Any]:
    x, y = images()
    return [(x[i], y[i]) for i in range(len(x))]


def noise(sample: Any, random: np.random.Generator) -> Any:
    x, y = sample
    return x + 0.1 * random.random(x.shape, "float32"), y


@source(in_exact=True)
def grain_map_dataset() -> Case:
    """Shuffled, with random maps; the same order in each epoch, as Grain has it."""
    import grain

    class Noise(grain.transforms.RandomMap):
        def random_map(self, element: Any, rng: np.random.Generator) -> Any:
            return noise(element, rng)

    data = grain.MapDataset.source(samples()).seed(3).shuffle()
    return case(data.random_map(Noise()).batch(8))


@source()
def grain_repeated() -> Case:
    """Without an end, another order in each pass; an epoch is no whole pass."""
    import grain

    # By default 500 batches are read ahead in each epoch, which takes seconds.
    grain.ReadOptions.__init__.__defaults__ = (2, 5)
    data = grain.MapDataset.source(samples()).shuffle(seed=3).repeat().batch(8)
    return case(
        data,
        steps_per_epoch=5,
        validation_data=data.slice(slice(0, 3)),
        validation_steps=2,
    )


@source()
def grain_iter_dataset() -> Case:
    """Filtered and read by threads; the number of batches is not known."""
    import grain

    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=5)
    data = grain.MapDataset.source(samples()).shuffle(seed=4)
    data = data.to_iter_dataset(options).filter(lambda sample: sample[1] < 2)
    return case(data.random_map(noise, seed=5).batch(5))


@source(in_exact=True)
def grain_data_loader() -> Case:
    """The sampler's order; a data source without a ``repr`` of its own."""
    import grain

    class Images:
        def __init__(self) -> None:
            self.samples = samples()

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> Any:
            return self.samples[index]

    class Noise(grain.transforms.RandomMap):
        def random_map(self, element: Any, rng: np.random.Generator) -> Any:
            return noise(element, rng)

    sampler = grain.samplers.IndexSampler(52, shuffle=True, seed=6, num_epochs=1)
    operations = [Noise(), grain.transforms.Batch(8)]
    loader = grain.DataLoader(
        data_source=Images(), sampler=sampler, operations=operations
    )
    return case(loader)
