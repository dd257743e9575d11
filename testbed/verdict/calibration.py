"""The idle network before training: rate and round trip of every path, every queue, their gates."""

from __future__ import annotations

import math
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from testbed.lab import paths
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.namespaces import socket_in
from testbed.lab.network import HostInfo, LabInfo, LinkEnds
from testbed.verdict import queue_calibration, rate_calibration
from testbed.verdict.gate import Finding, worst
from testbed.verdict.link_changes import LinkChanges
from testbed.verdict.queue_calibration import QueueCalibration

_MOST_ROUND_TRIPS, _LEAST_ROUND_TRIPS = 20, 4
_PROBING_TIME_S = 0.1
_FURTHER_BATCHES, _BETWEEN_BATCHES_S = 3, 0.03
_OFF_SHARE, _OFF_S = 0.05, 0.00015
_ANSWER_TIMEOUT_S = 0.5
_LOST_TIMEOUT_S = 0.1
_CONCURRENT_PROBES = 16
_DELAYED_S = 0.002  # round trips longer than this are waited for on many paths at once
_LONGEST_RTT_S = 1.0
_MOST_TRIES = 60  # until a probe comes back, where links are configured to lose most of them
_BUDGET_S = 6.0
_MILLIONTH = 4.9  # standard deviations of a normal distribution, either way
# Configured loss may cost so many probes by chance: more of them happen once in a million paths.
_CHANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class PathCalibration:
    """One direction between two hosts. `rate_bps` counts Ethernet frames, as the shaper does."""

    sender: str
    receiver: str
    configured_rate_bps: int
    rate_bps: float  # before configured losses: the median of the trials
    rate_spread: float = 0.0  # their interquartile range, as a share of the configured rate
    rate_trials: int = 0
    configured_rtt_s: float = 0.0
    rtt_s: float  # the median; includes about 0.1 ms of this process
    rtt_chance_s: float = 0.0  # how far jitter alone takes it, in all but one of a million cases
    probes_sent: int
    probes_lost: int
    switches: int = 1
    configured_loss: float = 0.0  # of frames on the way there
    configured_probe_loss: float = 0.0  # of round trips

    @property
    def ends(self) -> str:
        return f"{self.sender} to {self.receiver}"

    @property
    def rate_error(self) -> float:
        return abs(self.rate_bps / self.configured_rate_bps - 1)

    @property
    def lost(self) -> float:
        """The share of its probes that did not come back."""
        return self.probes_lost / self.probes_sent

    def lost_by_chance(self) -> float:
        """The share of its probes that its configured loss explains."""
        sent, loss = self.probes_sent, self.configured_probe_loss
        beyond = 1.0
        for lost in range(sent + 1):
            beyond -= math.comb(sent, lost) * loss**lost * (1 - loss) ** (sent - lost)
            if beyond <= _CHANCE:
                return lost / sent
        return 1.0

    def rtt_error_s(self) -> float:
        """How far the median round trip is off, beyond what the links' jitter explains."""
        beyond_s = abs(self.rtt_s - self.configured_rtt_s) - self.rtt_chance_s
        return 0.0 if beyond_s < 0 else beyond_s  # what is not a number stays so

    def rtt_limit(self, limits: Mapping[str, Any]) -> tuple[float, str]:
        """The limit in seconds and its key: a share of the round trip, or a time that is more."""
        # For each switch, since each receives a whole frame before it sends it on.
        least_s = limits["rtt_error_s"] * max(1, self.switches)
        share_s = limits["rtt_error"] * self.configured_rtt_s
        return worst([(least_s, "rtt_error_s"), (share_s, "rtt_error")])

    def as_json(self) -> dict[str, object]:
        """The record in `calibration.json`."""
        record = asdict(self)
        return {"from": record.pop("sender"), "to": record.pop("receiver"), **record}


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was measured. `left_out` paths were not measured, each like one that was."""

    paths: list[PathCalibration]
    queues: list[QueueCalibration] = field(default_factory=list)
    left_out: int = 0
    took_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """`calibration.json`, without the schema's number."""
        return {
            "links": [path.as_json() for path in self.paths],
            "queues": [queue.as_json() for queue in self.queues],
            "paths_left_out": self.left_out,
            "took_s": self.took_s,
        }


@dataclass(frozen=True, kw_only=True)
class _Path:
    sender: HostInfo
    receiver: HostInfo
    rate_bps: int
    rtt_s: float
    hops: int
    loss: float = 0.0
    probe_loss: float = 0.0
    delivered_share: float = 1.0  # of the rate, where the path is full
    jitters_s: tuple[float, ...] = ()  # of the links that have one, one way

    @property
    def cost_s(self) -> float:
        """Roughly how long it takes to measure its rate, and to wait for lost probes."""
        lost_s = _MOST_ROUND_TRIPS * self.probe_loss * _LOST_TIMEOUT_S
        blast_s = rate_calibration.duration_s(self.rate_bps, self.jitters_s)
        return blast_s + self.rtt_s + 0.003 + lost_s

    @property
    def likeness(self) -> tuple[float, ...]:
        kind = self.rate_bps, self.rtt_s, self.hops, self.loss, self.probe_loss
        return *kind, *self.jitters_s


def warm_up(network: LabInfo) -> None:
    """Send one packet over every path and back: with the first, the switch makes its socket."""

    def once(path: _Path) -> None:
        # The very first packet may get lost while flows are being set up.
        tries, rtt_s = (_MOST_TRIES, path.rtt_s) if path.probe_loss else (2, _LONGEST_RTT_S)
        with _udp(path.sender, rtt_s) as source, _udp(path.receiver, rtt_s) as sink:
            if all(_round_trip(source, sink) is None for _ in range(tries)):
                raise _no_answer(path)

    with ThreadPoolExecutor(_CONCURRENT_PROBES) as pool:
        list(pool.map(once, _pairs(network)))


def calibrate(network: LabInfo, *, budget_s: float = _BUDGET_S) -> Calibration:
    """Measure both directions between the server and every other host, and every link's queue."""
    began_s = time.monotonic()
    queues = queue_calibration.fill_all(network)
    every = list(_pairs(network))
    chosen = _affordable(every, budget_s)
    trips = _all_round_trips(chosen)
    measured = [_measure(path, found) for path, found in zip(chosen, trips, strict=True)]
    return Calibration(
        paths=measured,
        queues=queues,
        left_out=len(every) - len(chosen),
        took_s=time.monotonic() - began_s,
    )


def idle_round_trip_s(network: LabInfo) -> float:
    """The median round trip between the server and the first worker, in seconds."""
    path = next(_pairs(network))
    with _udp(path.sender, path.rtt_s) as source, _udp(path.receiver, path.rtt_s) as sink:
        found = [_round_trip(source, sink) for _ in range(_MOST_ROUND_TRIPS)]
    answered = [each for each in found if each is not None]
    if not answered:
        raise _no_answer(path)
    return statistics.median(answered)


def _pairs(network: LabInfo) -> Iterator[_Path]:
    description = network.as_json()
    links = {link.name: link for link in network.links}

    def between(first: HostInfo, second: HostInfo) -> list[LinkEnds]:
        return [links[each.name] for each in paths.path(description, first.name, second.name)]

    # A network whose hosts have names of their own is measured from the first one.
    server = network.hosts.get("server") or next(iter(network.hosts.values()))
    for host in network.hosts.values():
        if host is not server:
            for sender, receiver in ((host, server), (server, host)):
                ways = between(sender, receiver), between(receiver, sender)
                yield path_over(sender, receiver, *ways)


def path_over(
    sender: HostInfo, receiver: HostInfo, there: Sequence[LinkEnds], back: Sequence[LinkEnds]
) -> _Path:
    """The path over these links in order; probes come back over the others."""
    kept, kept_back = (math.prod(1 - link.loss for link in way) for way in (there, back))
    delivered_bps = math.inf  # of a flow that fills it
    for link in there:
        delivered_bps = min(delivered_bps, link.rate_bps) * (1 - link.loss)
    rate_bps = min(link.rate_bps for link in there)
    return _Path(
        sender=sender,
        receiver=receiver,
        rate_bps=rate_bps,
        rtt_s=2 * sum(link.delay_s for link in there),
        hops=len(there),
        loss=1 - kept,
        probe_loss=1 - kept * kept_back,
        delivered_share=delivered_bps / rate_bps,
        jitters_s=tuple(link.jitter_s for link in there if link.jitter_s),
    )


def _affordable(every: Sequence[_Path], budget_s: float) -> list[_Path]:
    total_s = sum(path.cost_s for path in every)
    if total_s <= budget_s:
        return list(every)
    alike: dict[tuple[float, ...], list[_Path]] = {}
    for path in every:
        alike.setdefault(path.likeness, []).append(path)
    chosen = []
    for group in alike.values():
        count = max(2, int(len(group) * budget_s / total_s))
        # Directions alternate: an even stride would choose one of them only.
        stride = -(-len(group) // count) | 1
        chosen.extend(group[::stride])
    return chosen


def _all_round_trips(chosen: Sequence[_Path]) -> list[list[float | None]]:
    """Round trips of every path: those of delayed ones at the same time, the others in turn."""

    def trips(path: _Path) -> list[float | None]:
        most = int(_PROBING_TIME_S / path.rtt_s) if path.rtt_s else _MOST_ROUND_TRIPS
        count = min(_MOST_ROUND_TRIPS, max(_LEAST_ROUND_TRIPS, most))
        with _udp(path.sender, path.rtt_s) as source, _udp(path.receiver, path.rtt_s) as sink:
            if path.probe_loss:  # many will be lost: do not wait for each for long
                for opened in (source, sink):
                    opened.settimeout(_LOST_TIMEOUT_S + 2 * path.rtt_s)
            found = [_round_trip(source, sink) for _ in range(count)]
            while path.probe_loss and not any(found) and len(found) < _MOST_TRIES:
                found.append(_round_trip(source, sink))
            # A batch lasts some milliseconds, in which other work may have delayed all of it. What
            # is wrong with the path itself delays the later batches as well. All of them count.
            for _ in range(_FURTHER_BATCHES):
                if not _seems_off(path, found):
                    break
                time.sleep(_BETWEEN_BATCHES_S)
                found += [_round_trip(source, sink) for _ in range(count)]
            return found

    found: dict[int, list[float | None]] = {}
    delayed = [number for number, path in enumerate(chosen) if path.rtt_s > _DELAYED_S]
    with ThreadPoolExecutor(_CONCURRENT_PROBES) as pool:
        found.update(zip(delayed, pool.map(trips, [chosen[each] for each in delayed]), strict=True))
    return [found[i] if i in found else trips(path) for i, path in enumerate(chosen)]


def _seems_off(path: _Path, trips: Sequence[float | None]) -> bool:
    """Whether the median is off by half of what the gates allow by default, or more."""
    answered = [trip for trip in trips if trip is not None]
    allowed_s = max(_OFF_SHARE * path.rtt_s, _OFF_S * (path.hops - 1))
    return bool(answered) and abs(statistics.median(answered) - path.rtt_s) > allowed_s


def _measure(path: _Path, trips: Sequence[float | None]) -> PathCalibration:
    answered = [trip for trip in trips if trip is not None]
    if not answered:
        raise _no_answer(path)
    with _udp(path.sender, path.rtt_s) as source, _udp(path.receiver, path.rtt_s) as sink:
        rate = rate_calibration.measure(
            source,
            sink,
            path.rate_bps,
            silence_s=path.rtt_s + _LOST_TIMEOUT_S,
            loss=path.loss,
            delivered_share=path.delivered_share,
            jitters_s=path.jitters_s,
        )
    return PathCalibration(
        sender=path.sender.name,
        receiver=path.receiver.name,
        configured_rate_bps=path.rate_bps,
        rate_bps=rate.median_bps,
        rate_spread=rate.spread,
        rate_trials=rate.trials,
        configured_rtt_s=path.rtt_s,
        rtt_s=statistics.median(answered),
        rtt_chance_s=median_chance_s(path.jitters_s, len(answered)),
        probes_sent=len(trips),
        probes_lost=len(trips) - len(answered),
        switches=path.hops - 1,
        configured_loss=path.loss,
        configured_probe_loss=path.probe_loss,
    )


def median_chance_s(jitters_s: Sequence[float], count: int) -> float:
    """How far the median of `count` round trips may be off by jitter: farther once in a million."""
    deviation_s = math.sqrt(2 / 3 * sum(jitter_s**2 for jitter_s in jitters_s))
    # As for a normal distribution; a sum of even ones has shorter tails.
    return _MILLIONTH * math.sqrt(math.pi / 2) * deviation_s / math.sqrt(count)


def _no_answer(path: _Path) -> CommandError:
    lossy = f"; configured to lose {path.probe_loss:.4g} of round trips" if path.probe_loss else ""
    return CommandError(f"no answer from {path.receiver.name} to {path.sender.name}{lossy}")


def _udp(host: HostInfo, rtt_s: float) -> socket.socket:
    opened = socket_in(host.pid, socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((host.address, 0))
    opened.settimeout(_ANSWER_TIMEOUT_S + 2 * rtt_s)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    return opened


def _round_trip(source: socket.socket, sink: socket.socket) -> float | None:
    began_s = time.monotonic()
    try:
        source.sendto(b"probe", sink.getsockname())
        sink.sendto(*sink.recvfrom(16))
        source.recv(16)
    except TimeoutError:
        return None
    return time.monotonic() - began_s


# The gates


def rate(calibration: Calibration) -> Finding:
    return _of_worst_path(calibration, lambda path: path.rate_error)


def rate_spread(calibration: Calibration) -> Finding:
    return _of_worst_path(calibration, lambda path: path.rate_spread)


def _of_worst_path(calibration: Calibration, value: Callable[[PathCalibration], float]) -> Finding:
    largest, ends = worst((value(path), path.ends) for path in calibration.paths)
    return Finding(value=largest, where=ends, note=_stand_ins(calibration))


def _stand_ins(calibration: Calibration) -> str:
    alike = f"{calibration.left_out} more paths have one like them among those measured"
    return alike if calibration.left_out else ""


def round_trip(calibration: Calibration, limits: Mapping[str, Any]) -> Finding:
    by_ends = {path.ends: path for path in calibration.paths}
    _, ends = worst(
        (path.rtt_error_s() - path.rtt_limit(limits)[0], path.ends) for path in by_ends.values()
    )
    limit_s, key = by_ends[ends].rtt_limit(limits)
    return Finding(
        value=by_ends[ends].rtt_error_s(),
        key=key,
        limit=limit_s,
        where=ends,
        note=_stand_ins(calibration),
    )


def idle_loss(calibration: Calibration, limits: Mapping[str, Any]) -> Finding:
    lossy = max(calibration.paths, key=lambda path: path.lost - path.lost_by_chance())
    configured = (
        f"configured loss takes {lossy.configured_probe_loss:.4g} of round trips, and by chance up "
        f"to {lossy.lost_by_chance():.4g} of {lossy.probes_sent} probes"
    )
    notes = configured if lossy.configured_probe_loss else "", _stand_ins(calibration)
    return Finding(
        value=lossy.lost,
        limit=min(1.0, limits["idle_loss"] + lossy.lost_by_chance()),
        where=lossy.ends if lossy.probes_lost else "",
        note="; ".join(filter(None, notes)),
    )


def queue_limits(calibration: Calibration) -> Finding:
    queues = calibration.queues
    errors = [(queue.error, queue.place) for queue in queues if queue.error is not None]
    unfilled = [queue for queue in queues if queue.error is None]
    if not queues:
        return Finding(note="there is no queue")
    missing = ""
    if unfilled:
        missing = (
            f"{len(unfilled)} of {len(queues)} queues not filled, such as {unfilled[0].place}: "
            f"{unfilled[0].reason}"
        )
    value, where = worst(errors) if errors else (None, "")
    return Finding(value=value, where=where, missing=missing)


def socket_buffer(
    network: LabInfo, changes: LinkChanges, switch_holds_bytes: int | None
) -> Finding:
    """All ports send through one socket: a queue that it cannot hold would never fill."""
    # That all of them fill at once is rare, so more than it can hold of them together is told and
    # does not fail. What it then refuses is lost without a count, and fails the conservation.
    if switch_holds_bytes is None:
        return Finding(note="the kernel's datapath sends by no socket")
    deepest_bytes = {
        (link.name, end.node): max(link.queue_bytes, changes.shape(link, end.node).queue_bytes)
        + (link.priority_queue_bytes or 0)
        for link in network.links
        for end in (link.first, link.second)
    }
    all_bytes = sum(
        queue_bytes
        for (_, sender), queue_bytes in deepest_bytes.items()
        if sender in network.switches
    )
    note = (
        f"all queues of the switches together may hold {all_bytes} bytes, and the buffer "
        f"{switch_holds_bytes}: where several are full, another may lose packets that conservation "
        "finds"
    )
    value = max(0, max(deepest_bytes.values()) - switch_holds_bytes)
    return Finding(value=value, note=note if all_bytes > switch_holds_bytes else "")
