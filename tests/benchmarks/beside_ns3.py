"""Our links beside those of ns-3: the fate and the time of every datagram, and what each costs.

    python -m tests.benchmarks.beside_ns3

It takes a C++ compiler and ns-3's headers and libraries (Debian and Ubuntu: `libns3-dev`), and
builds `beside_ns3.cc` with them. Both simulators get the same senders, times, links and queues;
nobody repairs what is lost. Processor seconds are those of the simulation alone, without set-up and
output, one after the other. ns-3 has events for each datagram and link. What ours costs depends on
how many datagrams a train has, and how often someone looks at what has come, so it is measured with
several: from trains of one that are handed over as they come, to trains as of a sender whose
transfer goes ahead, which are looked at now and then. Turns of both alternate, and the median of
their ratios counts.
"""

import functools
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.train import Batch, Train, depart

SIZE_BYTES = 1514
DELAY_NS = 50_000
SENDER_BPS = 100_000_000  # a datagram takes 121,120 ns, and a whole number of them at each port
ROOM = 50  # datagrams that may wait at a port beside the one that it is sending
SENDERS = 8
# Datagrams of a train, how often someone looks (0: it is handed over as it comes), and turns.
WAYS = ((1, 0.0, 1), (64, 0.01, 5), (1000, 0.1, 5))

Times = NDArray[np.int64]
# (sender, number) of each datagram that came out, and when, shape (n, 3), by sender and number.
Came = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Senders that share a chain of ports.

    Attributes:
        ports_bps: the rates of those.
        sent_ns: for each sender when it sends each datagram.
    """

    name: str
    ports_bps: tuple[int, ...]
    sent_ns: list[Times]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one simulator says: drops at each port, arrivals, and its processor seconds."""

    dropped: list[int]
    came: Came
    took_s: float


def cases() -> list[Case]:
    # Another pace for each sender, so that no two datagrams come to the port in one nanosecond, in
    # an order that is a matter of taste.
    def paced(count: int, gap_ns: int) -> list[Times]:
        return [i * 7919 + np.arange(count) * (gap_ns + 34 * (i + 1)) for i in range(SENDERS)]

    def drawn(count: int, per_s: float) -> list[Times]:
        random = [np.random.default_rng([i, 7]) for i in range(SENDERS)]
        gaps = [each.exponential(1e9 * SENDERS / per_s, count) for each in random]
        return [np.cumsum(each).astype(np.int64) for each in gaps]

    per_s = 160e6 / (SIZE_BYTES * 8)
    ports = (200_000_000, 160_000_000)
    return [
        Case(name="incast", ports_bps=(SENDER_BPS,), sent_ns=paced(400, 121_120)),
        Case(name="paced, load 0.98", ports_bps=(SENDER_BPS,), sent_ns=paced(5000, 988_734)),
        Case(name="Poisson, load 1.4", ports_bps=ports, sent_ns=drawn(5000, 1.4 * per_s)),
    ]


def build(folder: Path) -> Path:
    """ns-3's program. Raises SystemExit where it cannot be built."""
    compiler, program = shutil.which("c++"), folder / "beside_ns3"
    if compiler is None:
        sys.exit("beside_ns3: there is no C++ compiler (c++)")
    source = Path(__file__).with_suffix(".cc")
    libraries = [f"-lns3-{each}" for each in ("point-to-point", "network", "core")]
    made = subprocess.run(
        [compiler, "-std=c++17", "-O2", str(source), "-o", str(program), *libraries],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        sys.exit(f"beside_ns3: ns-3 is missing (libns3-dev) or differs:\n{made.stderr[:2000]}")
    return program


def of_ns3(program: Path, case: Case) -> Outcome:
    said = [SIZE_BYTES, SENDER_BPS, DELAY_NS, ROOM, len(case.ports_bps), *case.ports_bps]
    said.append(len(case.sent_ns))
    for times in case.sent_ns:
        said += [len(times), *times.tolist()]
    answer = subprocess.run(
        [program], input=" ".join(map(str, said)), capture_output=True, text=True, check=True
    ).stdout
    first, rest = answer.split("\n", 1)
    *dropped, took_s = first.split()
    came = np.array(rest.split(), np.int64).reshape(-1, 3)
    return Outcome(
        dropped=[int(each) for each in dropped], came=in_order(came), took_s=float(took_s)
    )


def of_ours(case: Case, length: int, looks_s: float) -> Outcome:
    """The same over our links, in trains of so many datagrams.

    Someone looks each `looks_s` at what has come; with 0, it is handed over before its time.
    """
    simulation = Simulation()
    delay_s = DELAY_NS / 1e9
    # Ours counts what is left of the datagram in service as well, which fits beside 50 others.
    room = (ROOM + 1) * SIZE_BYTES
    ports = [
        Link(simulation, rate_bps=each, delay_s=delay_s, queue_bytes=room)
        for each in case.ports_bps
    ]
    came: list[Came] = []

    def send(sender: int, first: int, links: list[Link]) -> None:
        times_s = case.sent_ns[sender][first : first + length] / 1e9

        def deliver(train: Train) -> None:
            numbers, out_ns = first + train.index, np.rint(train.times_s * 1e9).astype(np.int64)
            came.append(np.stack([np.full_like(numbers, sender), numbers, out_ns], axis=1))

        pulled = looks_s > 0
        batch = Batch(
            size_bytes=SIZE_BYTES, links=links, deliver=deliver, rank=sender, pulled=pulled
        )
        depart(batch, times_s)
        if (after := first + length) < len(case.sent_ns[sender]):
            next_s = case.sent_ns[sender][after] / 1e9
            simulation.at(next_s, functools.partial(send, sender, after, links))

    for sender, times in enumerate(case.sent_ns):
        links = [Link(simulation, rate_bps=SENDER_BPS, delay_s=delay_s), *ports]
        simulation.at(times[0] / 1e9, functools.partial(send, sender, 0, links))

    def look() -> None:
        ports[-1].catch_up()
        if simulation.now_s < over_s:
            simulation.at(simulation.now_s + looks_s, look)

    # When all that waits has left, however full the queues are.
    over_s = max(times[-1] for times in case.sent_ns) / 1e9 + 1.0
    if looks_s:
        simulation.at(looks_s, look)
    began_s = time.process_time()
    simulation.run(until_s=math.inf, limit=10**9)
    took_s = time.process_time() - began_s
    return Outcome(
        dropped=[port.dropped for port in ports],
        came=in_order(np.concatenate(came)),
        took_s=took_s,
    )


def in_order(came: Came) -> Came:
    return came[np.lexsort((came[:, 1], came[:, 0]))]


def beside(ours: Outcome, theirs: Outcome) -> str:
    """How far apart the two are."""
    one, two = ({tuple(each) for each in it.came[:, :2].tolist()} for it in (ours, theirs))
    if one != two:
        return f"{len(one ^ two)} datagrams have another fate"
    apart_ns = int(np.max(np.abs(ours.came[:, 2] - theirs.came[:, 2])))
    return f"same fate for all, at most {apart_ns} ns apart"


def compare(program: Path, case: Case) -> None:
    sent = sum(map(len, case.sent_ns))
    print(f"{case.name}: {sent} sent")
    for length, looks_s, turns in WAYS:
        pairs = [(of_ns3(program, case), of_ours(case, length, looks_s)) for _ in range(turns)]
        theirs, ours = pairs[0]
        rates = [sent / statistics.median(pair[i].took_s for pair in pairs) for i in (0, 1)]
        ratio = statistics.median(theirs.took_s / ours.took_s for theirs, ours in pairs)
        print(
            f"  {len(theirs.came)} came through ns-3, dropped {theirs.dropped}, the last at "
            f"{theirs.came[:, 2].max() / 1e6:.6f} ms; ours dropped {ours.dropped}, "
            f"{beside(ours, theirs)}\n"
            f"  trains of {length}, looks each {looks_s:g} s: {rates[1]:.0f} datagrams/s, "
            f"ns-3 {rates[0]:.0f}; {ratio:.2f} times as fast",
            flush=True,
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        program = build(Path(made))
        for case in cases():
            compare(program, case)


if __name__ == "__main__":
    main()
