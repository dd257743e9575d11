"""The peer `gloo`: torch.distributed's all-reduce between the worker and the server."""

from __future__ import annotations

import os
import tempfile
import time
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.bench.cases import Case
    from testbed.bench.network import Host


def new_store() -> Path:
    """Where two ranks find each other; imports torch, before any process forks."""
    import torch

    torch.set_num_threads(1)
    return Path(tempfile.mkdtemp()) / "store"


def run(case: Case, host: Host, barrier: Barrier, store: Path) -> list[dict[str, Any]]:
    """All-reduces the payload; each rank sends and receives as many bytes as it has."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    import torch
    from torch import distributed

    rank = 0 if host.name == "server" else 1
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(str(store), 2),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=case.limit_s),
    )
    payload = torch.ones(case.payload_bytes // 4)
    figures = []
    for number in range(case.warm_ups + case.repeats):
        barrier.wait(case.limit_s)
        cpu_s, began_s = time.process_time(), time.monotonic()
        distributed.all_reduce(payload)
        ended_s = time.monotonic()
        if number >= case.warm_ups:
            figures.append(
                {"cpu_s": time.process_time() - cpu_s, "began_s": began_s, "ended_s": ended_s}
            )
    barrier.wait(case.limit_s)
    return figures
