"""A rank of `test_ddp_machines`, under torchrun: writes what it found to OUT/RANK.json."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from testbed.ddp import BoundedLoss
from tests.ddp.ranks import drawn, exchange, last

SIZES = (50_000, 20_000)
PARAMETERS = [torch.zeros(size) for size in SIZES]


def exchanged(rank: int, world: int, **settings: Any) -> dict[str, Any]:
    """Five steps: whether the means are those in rank order, and how they came."""
    state = BoundedLoss("none", mode="reliable", timeout_s=60, **settings)
    right = True
    for step in range(5):
        means = exchange(state, drawn(SIZES, rank, step), PARAMETERS)
        gradients = [drawn(SIZES, other, step) for other in range(world)]
        for at, mean in enumerate(means):
            total = gradients[0][at].clone()
            for more in gradients[1:]:
                total += more[at]
            right &= torch.equal(mean, total / world)
    places = state._rendezvous
    state.close()
    return {
        "right": right,
        "carried_by": last(state).carried_by,
        "addresses": places.addresses,
        "keys": places.identity is not None,
        "chunk_bytes": places.chunk_bytes,
    }


def refused(**settings: Any) -> str:
    try:
        BoundedLoss(timeout_s=20, **settings)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def cut_off(rank: int, world: int) -> list[Any]:
    """The last rank's link goes down; what the others hear, and after how long."""
    state = BoundedLoss("dblp", timeout_s=8)
    for step in range(1000):
        if rank == world - 1 and step == 5:
            subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
        began_s = time.monotonic()
        try:
            exchange(state, drawn(SIZES, rank, step), PARAMETERS)
        except Exception as error:
            return [f"{type(error).__name__}: {error}", time.monotonic() - began_s]
        time.sleep(0.01)
    return ["nothing", 0.0]


def main() -> None:
    out = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    output: dict[str, Any] = {"named": exchanged(rank, world)}
    del os.environ["GLOO_SOCKET_IFNAME"]
    output["found"] = exchanged(rank, world)
    output["no interface"] = refused(interface="eth9" if rank == 1 else "eth0")
    with socket.socket() as taken:
        taken.bind(("", 47001))
        taken.listen()
        output["port"] = refused(port=47000 if rank == 1 else 48000)
        dist.barrier()
    if rank == world - 1:
        (out / f"{rank}.json").write_text(json.dumps(output))
    output["cut off"] = cut_off(rank, world)
    (out / f"{rank}.json").write_text(json.dumps(output))
    os._exit(0)  # the process group has lost a rank


if __name__ == "__main__":
    main()
