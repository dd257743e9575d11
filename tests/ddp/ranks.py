"""Ranks as real processes on loopback, with a gloo process group and a store in the test's process.

That is what torchrun does; only the store's host differs from a rank, as with torchrun's agent.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import traceback
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from testbed.ddp import BoundedLoss
from testbed.transport import preset

# Imported once, not by each rank: DDP imports `torch._dynamo` when it begins.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed.fsdp", "testbed.ddp", __name__]
)


@dataclass
class Outcome:
    """It holds what a rank's function returned, or the error's text and kind."""

    value: Any = None
    error: str = ""
    kind: str = ""


def _child(work, rank, world, port, results, arguments, backend="gloo"):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if "nccl" in backend:
        # It refuses two ranks of one machine on one GPU. So each says that it is a machine.
        more = {"NCCL_HOSTID": f"rank-{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        os.environ.update(more)
    torch.set_num_threads(1)
    outcome = Outcome()
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world)
        outcome.value = work(rank, **arguments)
    except BaseException as error:
        traceback.print_exc(file=sys.stderr)
        outcome.error, outcome.kind = str(error), type(error).__name__
    results.put((rank, outcome))


def _stored(ports):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ports.put(store.port)
    signal.pause()


@contextlib.contextmanager
def store_apart():
    """A store in a process of its own: its port, and the process's number."""
    ports = _CONTEXT.Queue()
    process = _CONTEXT.Process(target=_stored, args=(ports,))
    process.start()
    try:
        yield ports.get(timeout=100), process.pid
    finally:
        process.kill()


def launch(work, world, *, killed=(), within_s=100, store_port=None, backend="gloo", **arguments):
    """Runs `work(rank, **arguments)` on all ranks; returns their outcomes, by rank.

    Those that are `killed` (they kill themselves) have none. `store_port` is that of
    their store; None: it is in this process. `backend` is that of their process group.
    """
    if store_port is None:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store_port = store.port
    results = _CONTEXT.Queue()
    ranks = [
        _CONTEXT.Process(
            target=_child, args=(work, rank, world, store_port, results, arguments, backend)
        )
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    outcomes: dict[int, Outcome] = {}
    try:
        while len(outcomes) < world - len(killed):
            rank, outcome = results.get(timeout=within_s)
            outcomes[rank] = outcome
        for rank, process in enumerate(ranks):
            process.join(0 if rank in killed else 2)
    except queue.Empty:
        raise AssertionError(f"only ranks {sorted(outcomes)} ended: {outcomes}") from None
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
    return outcomes


def values(outcomes):
    for rank, outcome in outcomes.items():
        assert not outcome.error, f"rank {rank}: {outcome.kind}: {outcome.error}"
    return [outcomes[rank].value for rank in sorted(outcomes)]


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def model(dtype=torch.float32, *, frozen=False):
    """Equal on all ranks. With a `bucket_cap_mb` of BUCKET_MB it has three buckets."""
    torch.manual_seed(1)
    net = nn.Sequential(
        *(nn.Linear(30, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh()),
        *(nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 1)),
    )
    if frozen:
        net[2].weight.requires_grad_(False)
    return net.to(dtype)


BUCKET_MB = 0.01


def batch(step, rank, rows=8, dtype=torch.float32):
    draws = torch.Generator().manual_seed(1000 * step + rank)
    return (
        torch.randn(rows, 30, generator=draws).to(dtype),
        torch.randn(rows, 1, generator=draws).to(dtype),
    )


def wrapped(net, **more):
    return DistributedDataParallel(net, bucket_cap_mb=BUCKET_MB, **more)


def train(ddp, steps, rank, *, first=0, rows=8, device="cpu", after=None, optimiser=None):
    optimiser = optimiser or torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for step in range(first, first + steps):
        inputs, targets = (tensor.to(device) for tensor in batch(step, rank, rows))
        optimiser.zero_grad()
        nn.functional.mse_loss(ddp(inputs), targets).backward()
        optimiser.step()
        if after is not None:
            after(step)


def weights(net):
    with contextlib.suppress(AttributeError):
        net = net.module
    flat = [parameter.detach().reshape(-1).float() for parameter in net.parameters()]
    return torch.cat(flat).cpu().numpy()


def last(state):
    assert state.last is not None
    return state.last


def fake_bucket(buffer, parameters, *, last):
    bucket = SimpleNamespace(
        buffer=lambda: buffer, parameters=lambda: parameters, is_last=lambda: last
    )
    return cast(dist.GradBucket, bucket)


def exchange(state, gradients, parameters):
    """One step of buckets with these gradients, one parameter each; returns the means."""
    futures = []
    for index, (gradient, parameter) in enumerate(zip(gradients, parameters, strict=True)):
        bucket = fake_bucket(gradient.clone(), [parameter], last=index == len(gradients) - 1)
        futures.append(state.hook(state, bucket))
    return [future.wait() for future in futures]


def drawn(sizes, *seed):
    draws = torch.Generator().manual_seed(sum(1000**at * part for at, part in enumerate(seed)))
    return [torch.randn(size, generator=draws) for size in sizes]


def lossy(rank, protocol=None, **settings):
    """An exchange in which a third of the datagrams vanish before the network."""
    draws = np.random.default_rng(rank)
    return BoundedLoss(
        protocol or preset("fixed-high", tolerance=0.4),
        rate_bps=200e6,
        chunk_bytes=1440,
        timeout_s=60,
        leave_out=lambda count: draws.random(count) < 0.3,
        **settings,
    )


class Ledger:
    """It keeps what a rank has sent, what was applied, and the residuals left, by parameter."""

    def __init__(self, sizes):
        self.sent, self.applied = ([np.zeros(size) for size in sizes] for _ in range(2))
        self.left = {}

    def enter(self, gradients, means, scale=1.0):
        for total, gradient in zip(self.sent, gradients, strict=True):
            total += gradient.numpy() / scale
        for total, mean in zip(self.applied, means, strict=True):
            total += mean.numpy() / scale

    def close(self, state):
        self.left = residuals_in(state)


def residuals_in(state):
    return {slot: value.numpy() for slot, value in state.state_dict()["residuals"].items()}


def assert_complete(ledgers):
    """All replicas applied the same, and with what is left that is all that was sent."""
    for index, applied in enumerate(ledgers[0].applied):
        assert all(np.array_equal(ledger.applied[index], applied) for ledger in ledgers)
        sent = sum(ledger.sent[index] for ledger in ledgers)
        none = np.zeros(applied.size)
        left = sum(ledger.left.get(index, none).astype(float) for ledger in ledgers)
        delivered = len(ledgers) * applied.reshape(-1)
        np.testing.assert_allclose(delivered + left, sent.reshape(-1), rtol=1e-4, atol=1e-3)
