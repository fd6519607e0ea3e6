"""A loop by hand in two processes, on JAX or PyTorch; one of them may be killed.

``python loop_worker.py DIRECTORY RANK@STEP`` prints a digest of all that was trained.
"""

import hashlib
import os
import signal
import sys

import keras
import numpy as np
from support.waited import wait_for_each_save

import resilient

ROWS, BATCH, FEATURES = 24, 8, 3  # of all processes together
X = np.random.RandomState(0).rand(ROWS, FEATURES).astype("float32")


def torch_loop(directory, reached):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    torch.manual_seed(int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    net = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)
    )
    net = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
    run = resilient.Run(
        directory, save_freq=2, net=net, optimizer=optimizer, scheduler=scheduler
    )
    sampler = DistributedSampler(torch.from_numpy(X), shuffle=True)
    own = DataLoader(torch.from_numpy(X), BATCH // 2, sampler=sampler)
    for epoch in run.epochs(3):
        sampler.set_epoch(epoch)
        for step, batch in run.batches(own):
            optimizer.zero_grad()
            loss = net(batch).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.log(loss=loss)
            reached(step)
    yield run.history["loss"]
    yield from (tensor.detach().numpy() for tensor in net.parameters())
    yield from (tensor.numpy() for tensor in net.buffers())
    yield torch.get_rng_state().numpy()


def jax_loop(directory, reached):
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    keras.distribution.initialize()
    parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
    keras.distribution.set_distribution(parallel)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec("batch"))

    @jax.jit
    def train(state, x):
        key, now = jax.random.split(state["key"])
        noise = jax.random.normal(now, (FEATURES,))

        def loss_of(w):
            return jnp.mean(((x + noise) @ w) ** 2)

        loss, gradient = jax.value_and_grad(loss_of)(state["w"])
        state = {**state, "count": state["count"] + 1, "key": key}
        return loss, {**state, "w": state["w"] - 0.1 * gradient}

    def shared(value):
        return jax.make_array_from_callback(
            value.shape, everywhere, lambda index: value[index]
        )

    words = np.asarray(jax.random.key_data(jax.random.key(3)))
    rows = np.arange(2.0 * BATCH, dtype="float32")
    cut = jax.make_array_from_callback(rows.shape, divided, lambda index: rows[index])
    state = {
        "w": shared(np.ones((FEATURES, 2), "float32")),
        "key": jax.random.wrap_key_data(shared(words)),
        "cut": cut,
        "count": 0,  # an array of all processes once it was trained
    }
    run = resilient.Run(directory, save_freq=2, state=state)
    np.random.seed(3)  # after `initialize`, which seeds, too
    mine = X[jax.process_index() :: jax.process_count()]
    for _, step, batch in run.loop(mine, epochs=3, batch_size=BATCH // 2):
        x = jax.make_array_from_process_local_data(divided, np.asarray(batch))
        loss, run.state = train(run.state, x)
        run.state = {**run.state, "cut": run.state["cut"] * 0.5}
        run.log(loss=loss)
        reached(step)
    yield run.history["loss"]
    yield np.asarray(run.state["w"].addressable_data(0))
    yield np.asarray(run.state["cut"].addressable_data(0))
    yield np.asarray(run.state["count"].addressable_data(0))


def main(directory, rank, step):
    wait_for_each_save()  # so that a step says what is committed

    def reached(at):
        if (int(os.environ["RANK"]), at) == (rank, step):
            os.kill(os.getpid(), signal.SIGKILL)

    loop = {"torch": torch_loop, "jax": jax_loop}[keras.backend.backend()]
    found = hashlib.sha256()
    for part in loop(directory, reached):
        found.update(repr(part).encode() if isinstance(part, list) else part.tobytes())
    print(f"digest {found.hexdigest()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2].split("@")))
