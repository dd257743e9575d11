"""What our netlink codec saves: `unshare -n python -m tests.benchmarks.netlink_cost` prints it.

Does the same work with pyroute2 (install it first; the project does not need it): a change of a
link's rate, a dump of all queues' statistics, and TCP_INFO of all connections.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from testbed.lab.kernel import link_counters, rtnetlink, shaping
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shaping import LinkShape
from testbed.sampling import tcp_reader
from testbed.sampling.queue_reader import QueueDump

_SHAPE = LinkShape(rate_bps=100_000_000, queue_bytes=150_000)
_CONNECTIONS = 18


def main() -> None:
    pyroute2 = importlib.import_module("pyroute2")
    run(["ip", "link", "set", "lo", "up"])
    names = [f"{end}{number}" for number in range(10) for end in "ab"]
    kernel = Rtnetlink()
    kernel.send([rtnetlink.veth(*pair) for pair in zip(names[::2], names[1::2], strict=True)])
    for name in names:
        shaping.shape(name, _SHAPE)
    index = kernel.index(names[0])
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    open_sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(_CONNECTIONS)]
    open_sockets += [server.accept()[0] for _ in range(_CONNECTIONS)]
    dump, reader = QueueDump(names), tcp_reader.TcpReader(os.getpid())
    connections = reader.connections(port, port)
    route, diagnosis = pyroute2.IPRoute(), pyroute2.DiagSocket()

    def change() -> None:
        route.tc(
            "change-class",
            "htb",
            index=index,
            handle=0x10010,
            parent=0x10000,
            rate="100mbit",
            burst=_SHAPE.burst_bytes,
        )

    def sample() -> None:
        if dump.full:
            dump.decode()
        dump.capture()

    def statistics() -> list[Any]:
        return [
            (each["index"], each.get_attr("TCA_STATS2").get_attr("TCA_STATS_QUEUE")["drops"])
            for each in route.get_qdiscs()
        ]

    def tcp_info() -> list[Any]:
        found = diagnosis.get_sock_stats(family=socket.AF_INET, states=1 << 1, extensions=1 << 1)
        return [each.get_attr("INET_DIAG_INFO") for each in found]

    cases: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        (
            "change of a rate",
            lambda: kernel.send([shaping.rate_message(index, _SHAPE, names[0])]),
            change,
        ),
        ("dump of all queues, parsed", link_counters.queues, statistics),
        ("dump of all queues, for the sampler", sample, statistics),
        (
            f"TCP_INFO of {len(connections)} connections",
            lambda: tcp_reader.decode([reader.ask(each.lookup()) for each in connections]),
            tcp_info,
        ),
    ]
    for name, ours, theirs in cases:
        own_s, their_s = _cpu_s(ours), _cpu_s(theirs)
        figures = f"ours {own_s * 1e6:.0f} us, pyroute2 {their_s * 1e6:.0f} us"
        print(f"{name}: {figures}, ratio {their_s / own_s:.0f}")


def _cpu_s(work: Callable[[], object], times: int = 200) -> float:
    work()
    began_s = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began_s) / times


if __name__ == "__main__":
    main()
