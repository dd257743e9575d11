"""One flow or two through a real bottleneck, inside a sandbox: what `congestion_controls` repeats.

Two workers, a bridge, and a server behind one link, on which the project's own parts do everything:
the shaper of the bridge's port is the bottleneck, behind it the relay (or netem) delays, and the
server's packet filter loses. The workers' own links are ten times as fast, so their queues stay
empty: a queue in the sender's own host would tell kernel TCP, and nobody else, that it is full.
Times are counted in round trips without a queue. What is delivered is what came out of the
bottleneck less what the filter then lost, headers included, for ours and the kernel's alike.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.bench.conductor import OPEN_LIMIT_S, Player, Process, start
from testbed.bench.transport.network import Host, LinkKind, Network, build
from testbed.lab import loss_table
from testbed.lab.kernel.namespaces import enter, entered
from testbed.lab.kernel.packet_filter import PacketFilter
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shaping import LinkShape, rate_message, shape
from testbed.lab.loss_table import LossModel
from testbed.sampling.queue_reader import BACKLOG_BYTES, DROPS, SENT_BYTES, QueueDump
from testbed.transport import EndpointConfig, PayloadLayout, open_endpoint, preset
from testbed.transport.core.wire import DATA_PORTS
from tests.transport.congestion_scenarios import back_after
from tests.transport.fairness import jain

OURS, KERNEL = "ours", "kernel"
ONE, PER_CENT, BURST = "one datagram", "1 %", "90 %"  # losses

_BOTTLENECK = "bench0"
_SAMPLE_S = 0.001
_FASTER = 10  # the workers' own links
_CHUNK_BYTES = 1456  # datagrams of 1514 bytes on the wire, as TCP's
_PIECE = bytes(1 << 18)
_LONGEST_S = 8.0  # that a flow may last

Measures = dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class BottleneckPath:
    """The bottleneck: its rate, the round trip without a queue, the queue in products of both."""

    rate_bps: int
    rtt_s: float
    queue: float

    @property
    def product_bytes(self) -> float:
        return self.rate_bps * self.rtt_s / 8

    def shape(self, factor: float = 1.0) -> LinkShape:
        return LinkShape(
            rate_bps=int(self.rate_bps * factor), queue_bytes=int(self.queue * self.product_bytes)
        )


@dataclass
class Link:
    """The network of a path, and what may be done to it while flows run."""

    path: BottleneckPath
    network: Network
    filters: dict[str, PacketFilter] = field(default_factory=dict)
    occurrence: int = 0

    def set_rate(self, factor: float) -> None:
        with Rtnetlink() as kernel:
            index = kernel.index(_BOTTLENECK)
            kernel.send([rate_message(index, self.path.shape(factor), _BOTTLENECK)])

    def lose(self, which: str) -> None:
        self.occurrence += 1
        self.filters[which].take()
        self.filters[which].lose(data_ports=DATA_PORTS, occurrence=self.occurrence)

    def keep(self, which: str) -> float:
        """End a loss; return the share that it took."""
        losses = self.filters[which].take()
        self.filters[which].clear()
        return losses.dropped / losses.met if losses.met else 0.0

    def reset(self) -> None:
        self.set_rate(1.0)
        for each in self.filters.values():
            each.clear()


@contextmanager
def link(path: BottleneckPath) -> Iterator[Link]:
    """The network, until it is left."""
    network = build(LinkKind(rtt_s=path.rtt_s, workers=2))
    try:
        shape(_BOTTLENECK, path.shape())
        fast = LinkShape(rate_bps=_FASTER * path.rate_bps, queue_bytes=1 << 20)
        for number, worker in enumerate(network.workers, 1):
            shape("eth0", fast, pid=worker.pid)
            shape(f"bench{number}", fast)
        for host in (network.server, *network.workers):
            with entered(host.pid):
                # A connection must not begin with what an earlier one has learnt.
                Path("/proc/sys/net/ipv4/tcp_no_metrics_save").write_text("1\n")
        tables = {
            ONE: loss_table.given([[range(1)]]),
            PER_CENT: loss_table.drawn(LossModel(loss_good=0.01), "congestion controls"),
            BURST: loss_table.drawn(LossModel(loss_good=0.9), "congestion controls"),
        }
        filters = {
            name: PacketFilter(network.server.pid, "eth0", table) for name, table in tables.items()
        }
        yield Link(path, network, filters)
    finally:
        network.close()


# Flows


@contextmanager
def flows(link: Link, side: str, control: str) -> Iterator[list[Callable[[], None]]]:
    """Open senders at both workers; yields what makes each of them begin."""
    network = link.network
    work = functools.partial(_ours, link=link, session=int.from_bytes(os.urandom(4), "big"))
    if side == KERNEL:
        work = functools.partial(_kernel, link=link)
    processes: dict[str, Process] = {}

    def begin(host: Host, player: Player) -> None:
        enter(host.pid)
        work(control, host, player)

    try:
        for host in (network.server, *network.workers):
            processes[host.name] = start(functools.partial(begin, host))
        for process in processes.values():
            _wait_until_ready(process)
        os.write(processes["server"].writing, b"g")
        yield [
            functools.partial(os.write, processes[worker.name].writing, b"g")  # type: ignore[misc]
            for worker in network.workers
        ]
        for name, process in processes.items():
            while select.select([process.reading], [], [], 0)[0] and process.hear(process.reading):
                pass
            if process.error is not None:
                raise RuntimeError(f"{side} {control}: {name}: {process.error or 'ended'}")
    finally:
        for process in processes.values():
            process.end()


def _wait_until_ready(process: Process) -> None:
    until_s = time.monotonic() + OPEN_LIMIT_S
    while not process.ready:
        left_s = max(0.0, until_s - time.monotonic())
        if not select.select([process.reading], [], [], left_s)[0]:
            raise RuntimeError(f"not open within {OPEN_LIMIT_S:g} s")
        process.hear(process.reading)
        if process.error is not None:
            raise RuntimeError(process.error)


def _ours(control: str, host: Host, player: Player, *, link: Link, session: int) -> None:
    """A part of one long transfer by `streaming`, whose receiver acknowledges as TCP's does."""
    network, path = link.network, link.path
    is_server = host is network.server
    addresses = {worker.name: worker.address for worker in network.workers}
    peers = addresses if is_server else {"server": network.server.address}
    payload_bytes = int(path.rate_bps / 8 * _LONGEST_S)
    layout = PayloadLayout([("payload", payload_bytes // 4)], _CHUNK_BYTES)
    protocol = preset("fixed-low", tolerance=0, repair="streaming", congestion_control=control)
    config = EndpointConfig(
        session=session,
        name=host.name,
        bind_address=host.address,
        peers=peers,
        is_server=is_server,
        protocol=protocol,
        layout=layout,
        rate_bps=path.rate_bps,
        queue_bytes=path.queue * path.product_bytes,
        insecure=True,  # nobody else is in these namespaces
        peer_timeout_s=60.0,
    )
    buffers = {peer: layout.new_buffer() for peer in peers}
    with open_endpoint(config) as endpoint:
        player.ready()
        player.turn()
        if is_server:
            endpoint.receive(0, 0.0, buffers)
        else:
            endpoint.send(0, buffers)


def _kernel(control: str, host: Host, player: Player, *, link: Link) -> None:
    """A part of TCP connections that carry zeros without end."""
    server, port = link.network.server, DATA_PORTS[0]
    if host is server:
        with socket.create_server((server.address, port)) as listening:
            player.ready()
            into, connections = bytearray(1 << 20), []
            for _ in link.network.workers:
                connections.append(listening.accept()[0])
            while True:
                for each in select.select(connections, [], [])[0]:
                    each.recv_into(into)
    with socket.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        until_s = time.monotonic() + OPEN_LIMIT_S
        while connection.connect_ex((server.address, port)):
            if time.monotonic() > until_s:
                raise TimeoutError(f"no connection to {server.address}")
            time.sleep(0.01)
        player.ready()
        player.turn()
        while True:
            connection.sendall(_PIECE)


# Watching


class Watch:
    """Samples the bottleneck while time passes."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._path = link.path
        self._dump = QueueDump([_BOTTLENECK, "bench1", "bench2"])
        self._began_s = time.monotonic()
        self._times_s: list[NDArray[np.float64]] = []
        self._values: list[NDArray[np.int64]] = []
        self._received: list[tuple[float, tuple[int, ...]]] = []

    @property
    def now(self) -> float:
        """In round trips since it began."""
        return (time.monotonic() - self._began_s) / self._path.rtt_s

    def until(self, round_trip: float) -> None:
        """Let time pass."""
        end_s = self._began_s + round_trip * self._path.rtt_s
        while time.monotonic() < end_s:
            if self._dump.full:
                self._take()
            self._dump.capture()
            time.sleep(_SAMPLE_S)
        self._take()

    def _take(self) -> None:
        times_s, values = self._dump.decode()
        self._times_s.append(times_s)
        self._values.append(values)

    def measures(
        self, first: float, last: float, *, lost: float = 0.0, factor: float = 1.0
    ) -> Measures:
        """Of the round trips from `first` to `last`: goodput as a share of the rate, the queue.

        Args:
            first, last: in round trips.
            lost: the share lost behind the bottleneck.
            factor: the rate then, as a multiple of the usual one.
        """
        times, values = self._all()
        inside = (times >= first) & (times <= last)
        backlog = values[inside, BACKLOG_BYTES] / self._path.product_bytes
        rate = self._path.product_bytes * factor
        sent = np.interp([first, last], times, values[:, SENT_BYTES])
        drops = np.interp([first, last], times, values[:, DROPS])
        return {
            "goodput": float(np.diff(sent)[0] / (last - first) / rate * (1 - lost)),
            "queue_mean": float(backlog.mean()),
            "queue_peak": float(backlog.max()),
            "drops": float(np.diff(drops)[0]),
        }

    def back(self, first: float, last: float, *, factor: float = 1.0) -> float | None:
        """Round trips after `first` until five in a row carry 95 % of the rate; None: never."""
        times, values = self._all()
        at = np.arange(first, last + 1)
        sent = np.diff(np.interp(at, times, values[:, SENT_BYTES]))
        found = back_after(list(sent / (self._path.product_bytes * factor)))
        return None if found is None else float(found)

    def _all(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        times = (np.concatenate(self._times_s) - self._began_s) / self._path.rtt_s
        return times, np.concatenate(self._values)[:, 0]


def _arrived(link: Link) -> list[int]:
    """Bytes that each worker has sent so far."""
    found = []
    for worker in link.network.workers:
        lines = Path(f"/proc/{worker.pid}/net/dev").read_text().splitlines()
        eth0 = next(line for line in lines if line.split(":")[0].strip() == "eth0")
        found.append(int(eth0.partition(":")[2].split()[8]))
    return found


# Scenarios


def one_flow(link: Link, begins: list[Callable[[], None]]) -> dict[str, Measures]:
    """Start, steady state, one lost datagram, and a burst of 90 % over 20 round trips."""
    begins[0]()
    watch = Watch(link)
    watch.until(250)
    link.lose(ONE)
    watch.until(320)
    link.keep(ONE)
    link.lose(BURST)
    watch.until(340)
    link.keep(BURST)
    ended = watch.now
    watch.until(ended + 150)
    return {
        "start": watch.measures(0, 50) | {"back": watch.back(0, 100)},
        "steady": watch.measures(100, 250),
        "one-loss": watch.measures(251, 301) | {"back": watch.back(251, 315)},
        "burst": watch.measures(ended, ended + 50) | {"back": watch.back(ended, ended + 150)},
    }


def random_loss(link: Link, begins: list[Callable[[], None]]) -> dict[str, Measures]:
    """1 % of the data lost."""
    begins[0]()
    watch = Watch(link)
    watch.until(50)
    link.lose(PER_CENT)
    watch.until(350)
    return {"loss-1%": watch.measures(100, 350, lost=link.keep(PER_CENT))}


def changing_rate(link: Link, begins: list[Callable[[], None]]) -> dict[str, Measures]:
    """The rate halves, and doubles again."""
    begins[0]()
    watch = Watch(link)
    watch.until(100)
    link.set_rate(0.5)
    watch.until(200)
    link.set_rate(1.0)
    watch.until(350)
    return {
        "halved": watch.measures(101, 200, factor=0.5),
        "doubled": watch.measures(200, 300) | {"back": watch.back(200, 350)},
    }


def two_flows(link: Link, begins: list[Callable[[], None]]) -> dict[str, Measures]:
    """A second flow begins when the first has the link."""
    begins[0]()
    watch = Watch(link)
    watch.until(50)
    begins[1]()
    watch.until(150)
    before = _arrived(link)
    watch.until(450)
    sent = [now - then for now, then in zip(_arrived(link), before, strict=True)]
    return {"two-flows": watch.measures(150, 450) | {"jain": jain(sent)}}


SCENARIOS: dict[str, Callable[[Link, list[Callable[[], None]]], dict[str, Measures]]] = {
    "one-flow": one_flow,
    "loss-1%": random_loss,
    "rate": changing_rate,
    "two-flows": two_flows,
}


def trial(link: Link, side: str, control: str, scenario: str) -> dict[str, Measures]:
    """The measures of one trial, by the name of its part."""
    with flows(link, side, control) as begins:
        try:
            return SCENARIOS[scenario](link, begins)
        finally:
            link.reset()
