"""Sources of data: torch DataLoaders, torchdata's too.

Samples are rows of 64 numbers, drawn from while training where a scenario says so: with
global generators that the model and callbacks draw from as well.
"""

import random
from typing import Any

import numpy as np

from .parts import SAMPLES, compiled, noisy, rows
from .registry import Case, source


def fitted(loader: Any, **kwargs: Any) -> Case:
    defaults = {"epochs": 3, "verbose": 0}
    recorded = kwargs.pop("recorded", True)
    callbacks = kwargs.pop("callbacks", [])
    model = compiled(noisy((64,)))
    return Case(model, (loader,), defaults | kwargs, callbacks, recorded=recorded)


def samples(kind: str = "plain") -> Any:
    """A map-style dataset: plain, with augmentation, or with a generator of its own."""
    from torch.utils.data import Dataset

    x, y = rows()

    class Plain(Dataset):
        def __len__(self):
            return SAMPLES

        def __getitem__(self, index):
            return x[index], y[index]

    class Augmented(Plain):
        """Draws from every global generator."""

        def __getitem__(self, index):
            import torch

            noise = random.random() + np.random.rand(64) + torch.rand(64).numpy()
            return (x[index] + 0.1 * noise).astype("float32"), y[index]

    class Own(Plain):
        """Draws from a generator of its own, and counts."""

        def __init__(self):
            self.random = np.random.default_rng(np.random.randint(1000))
            self.loaded = 0

        def __getitem__(self, index):
            self.loaded += 1
            noise = self.random.normal(size=64) + self.loaded / 100
            return (x[index] + 0.1 * noise).astype("float32"), y[index]

    return {"plain": Plain, "augmented": Augmented, "own": Own}[kind]()


def loader(dataset: Any, **kwargs: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, **{"batch_size": 8} | kwargs)


@source(in_exact=True)
def torch_shuffled() -> Case:
    """Order and augmentation from global generators; validation reshuffles as well."""
    x, y = rows(20, seed=1)
    validation = loader(list(zip(x, y, strict=True)), shuffle=True)
    augmented = loader(samples("augmented"), shuffle=True, drop_last=True)
    # On TensorFlow batches are drawn in a thread, with the same generators.
    return fitted(augmented, validation_data=validation, recorded=False)


# In the middle of an epoch, and of an iterator that lasts for more than two of them.
SHORT_KILLS = ("train_batch_end@1:0", "train_batch_end@1:1", "epoch_begin@2")


@source(*SHORT_KILLS)
def torch_generator() -> Case:
    """The loader's own generator; one iterator for all epochs."""
    import torch

    generator = torch.Generator().manual_seed(random.randrange(1000))
    return fitted(
        loader(samples(), shuffle=True, generator=generator), steps_per_epoch=3
    )


@source()
def torch_collated() -> Case:
    """A generator in the closure of a function, which validation draws from as well."""
    import torch
    from torch.utils.data import default_collate

    rng = np.random.default_rng(np.random.randint(1000))

    def collate(batch):
        x, y = default_collate(batch)
        return x + 0.1 * torch.from_numpy(rng.normal(size=(len(x), 64))).float(), y

    class Noisy:
        """As an attribute of a dataset."""

        def __init__(self):
            self.rng = rng

        def __len__(self):
            return 20

        def __getitem__(self, index):
            return x[index] + self.rng.random(dtype="float32"), y[index]

    x, y = rows(20, seed=1)
    return fitted(
        loader(samples(), shuffle=True, collate_fn=collate),
        validation_data=loader(Noisy(), shuffle=True),
    )


@source()
def torch_weighted() -> Case:
    """Drawn with replacement; the dataset has a generator and a counter."""
    from torch.utils.data import WeightedRandomSampler

    sampler = WeightedRandomSampler(np.arange(1, SAMPLES + 1), SAMPLES)
    return fitted(loader(samples("own"), sampler=sampler))


@source()
def torch_own_sampler() -> Case:
    """A sampler that is told the epoch, and draws a global number now and then."""
    import keras
    from torch.utils.data import Sampler

    class Chunks(Sampler):
        def __init__(self):
            self.epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __len__(self):
            return SAMPLES

        def __iter__(self):
            for start in range(0, SAMPLES, 13):
                order = np.random.permutation(min(13, SAMPLES - start))
                yield from ((start + i + self.epoch) % SAMPLES for i in order)

    class SetEpoch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            sampler.set_epoch(epoch)

    sampler = Chunks()
    augmented = loader(samples("augmented"), sampler=sampler)
    # With as many steps as batches, Keras makes the next iterator before set_epoch.
    return fitted(augmented, callbacks=[SetEpoch()], recorded=False, steps_per_epoch=7)


@source()
def torch_own_batch_sampler() -> Case:
    """Batches of other sizes in every epoch, from a generator that nobody seeded."""

    class Batches:
        def __init__(self):
            self.random = np.random.default_rng(np.random.randint(1000))
            self.begun = 0

        def __len__(self):
            return 7

        def __iter__(self):
            self.begun += 1
            order = self.random.permutation(SAMPLES)
            sizes = [5, 9] if self.begun % 2 else [9, 5]
            for number in range(7):
                size = sizes[number % 2]
                yield [int(i) for i in order[:size]]
                order = self.random.permutation(order)

    from torch.utils.data import DataLoader

    return fitted(DataLoader(samples(), batch_sampler=Batches()))


@source(*SHORT_KILLS)
def torch_persistent_workers() -> Case:
    """Workers that live on: their random numbers, and their copies of the dataset."""
    return fitted(
        loader(samples("own"), shuffle=True, num_workers=2, persistent_workers=True),
        steps_per_epoch=3,
    )


@source()
def torch_persistent_workers_whole_epochs() -> Case:
    """The same with an iterator for each epoch; validation has such workers, too."""
    x, y = rows(20, seed=1)
    settings = {"shuffle": True, "num_workers": 1, "persistent_workers": True}
    validation = loader(list(zip(x, y, strict=True)), **settings)
    return fitted(loader(samples("augmented"), **settings), validation_data=validation)


def stream(stateful: bool) -> Any:
    """An iterable dataset, in another order each time it is begun."""
    from torch.utils.data import IterableDataset

    x, y = rows()

    class Stream(IterableDataset):
        def __init__(self):
            self.begun = 0

        def __len__(self):
            return SAMPLES

        def __iter__(self):
            self.begun += 1
            for index in np.random.permutation(SAMPLES):
                yield x[index], y[index] + 0 * self.begun

    class Resumable(Stream):
        def __init__(self):
            self.next, self.seed, self.told = 0, random.randrange(1000), False

        def __iter__(self):
            if not self.told:
                self.next, self.seed = 0, self.seed + 1
            self.told = False
            while self.next < SAMPLES:
                order = np.random.default_rng(self.seed).permutation(SAMPLES)
                self.next += 1
                yield x[order[self.next - 1]], y[order[self.next - 1]]

        def state_dict(self):
            return {"next": self.next, "seed": self.seed}

        def load_state_dict(self, state):
            self.next, self.seed, self.told = state["next"], state["seed"], True

    return Resumable() if stateful else Stream()


@source()
def torch_iterable_with_state() -> Case:
    """An iterable dataset that could tell where it is; it is replayed."""
    return fitted(loader(stream(stateful=True)))


@source()
def torchdata_iterable() -> Case:
    """A StatefulDataLoader over a dataset that tells where it is."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return fitted(StatefulDataLoader(stream(stateful=True), batch_size=8))
