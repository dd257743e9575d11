"""The time of a training step's exchange beside Gloo's all-reduce, in one run between machines.

    python -m tests.benchmarks.ddp_machines [--megabytes 25] [--buckets 2] [--turns 9] [--only NAME]

Three namespaces of the network are the machines, behind one bridge, in two networks: `veth`, which
nothing shapes, and `lossy`, where each link carries 100 Mbit/s in each direction, with queues of
150 kB, and each machine loses 1 % of the packets that arrive, of all kinds. A turn, and what is
printed of all, is as in `ddp_step`. Ours has keys; `bbr` measures its rate.
It needs root or user namespaces. All ranks share this machine's processors.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys

import torch
import torch.distributed as dist

from testbed.lab import loss_table
from testbed.lab.kernel.namespaces import enter
from testbed.lab.kernel.packet_filter import PacketFilter
from testbed.lab.kernel.shaping import LinkShape, shape_all
from testbed.lab.loss_table import LossModel
from tests.benchmarks.ddp_step import show, work
from tests.lab import machines

RANKS = 3
NETWORKS = ("veth", "lossy")
KINDS = [
    *("gloo", "reliable, bbr", "reliable, server", "bounded, bbr"),
    *("reliable, unpaced", "bounded, unpaced"),
]
SHAPE = LinkShape(rate_bps=100_000_000, queue_bytes=150_000)
LOSS = 0.01
_SANDBOX = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
_INSIDE = "BENCHMARK_INSIDE"  # in the environment of this program in its own namespaces
_PORT = 29500


def impair(pids: list[int]) -> list[PacketFilter]:
    """Makes the network `lossy`, for as long as the filters are kept."""
    filters = []
    for number, pid in enumerate(pids):
        ends = [(f"port{number}", None), ("eth0", pid)]
        shape_all((name, where, SHAPE) for name, where in ends)
        table = loss_table.drawn(LossModel(loss_good=LOSS), f"machine {number}")
        filters.append(PacketFilter(pid, "eth0", table))
        filters[-1].lose(data_ports=None)
    return filters


def rank(number: int, pid: int, port: int, arguments: argparse.Namespace) -> None:
    """One rank, in a process of its own; rank 0 prints."""
    enter(pid)
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR=machines.address(0), MASTER_PORT=str(port))
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", rank=number, world_size=RANKS)
    took_s = work(number, arguments.buckets, arguments.megabytes, arguments.turns, KINDS, "cpu")
    mine = torch.tensor([took_s[kind] for kind in KINDS], dtype=torch.float64)
    everyone = [torch.empty_like(mine) for _ in range(RANKS)]
    dist.all_gather(everyone, mine)
    if number == 0:
        show([dict(zip(KINDS, took.tolist(), strict=True)) for took in everyone])
        sys.stdout.flush()
    dist.barrier()


def measure(pids: list[int], port: int, arguments: argparse.Namespace) -> bool:
    """It is true if all ranks have ended well."""
    context = multiprocessing.get_context("fork")  # torch is imported once
    ranks = [
        context.Process(target=rank, args=(number, pid, port, arguments))
        for number, pid in enumerate(pids)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return not any(process.exitcode for process in ranks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=25.0, help="of a bucket")
    parser.add_argument("--buckets", type=int, default=2)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--only", choices=NETWORKS)
    arguments = parser.parse_args()
    if _INSIDE not in os.environ:
        words = [sys.executable, "-m", "tests.benchmarks.ddp_machines", *sys.argv[1:]]
        environment = os.environ | {_INSIDE: "1"}
        argv = [*_SANDBOX, "--mount-proc", *words]
        return subprocess.run(argv, env=environment, check=False).returncode
    pids, filters = machines.build(RANKS), list[PacketFilter]()
    for number, name in enumerate(NETWORKS):
        if name == "lossy":
            filters = impair(pids)
        if arguments.only in (None, name):
            print(f"{name}:", flush=True)
            if not measure(pids, _PORT + number, arguments):
                return 1
    for machine, packet_filter in enumerate(filters):
        losses = packet_filter.take()
        print(f"machine {machine} lost {losses.dropped} of {losses.met} packets")
    return 0


if __name__ == "__main__":
    sys.exit(main())
