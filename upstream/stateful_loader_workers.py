"""torchdata's ``StatefulDataLoader`` loses the random state of its workers.

After a restore it yields the right samples, but with different random numbers.

Backends: torch
Needs: torch, torchdata.stateful_dataloader
"""

import sys

import torch
from torchdata.stateful_dataloader import StatefulDataLoader


class Augmented(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, torch.rand(())


def loader():
    torch.manual_seed(1)
    return StatefulDataLoader(Augmented(), batch_size=2, num_workers=1)


saved, resumed = loader(), loader()
batches = iter(saved)
next(batches)
resumed.load_state_dict(saved.state_dict())
(numbers, expected), (again, found) = next(batches), next(iter(resumed))
assert numbers.tolist() == again.tolist()
if found.tolist() == expected.tolist():
    sys.exit("gone: the augmentation is the same")
print(f"shown: for the same samples {found.tolist()}, not {expected.tolist()}")
