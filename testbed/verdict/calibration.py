"""The idle network before training: rate and round trip of every path, every queue, their gates.

A saturated path's arrivals are stamped by the kernel and cut into short stretches, each a trial.
Queues are filled by frames of an experimental EtherType towards an address that nobody owns.
"""

from __future__ import annotations

import errno
import math
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from testbed.lab import paths
from testbed.lab.kernel import link_counters
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.namespaces import entered, socket_in
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES, OWN_ETHERTYPE, LinkShape, rate_message
from testbed.lab.network import HostInfo, LabInfo, LinkEnds, Port
from testbed.verdict.gates import Finding, worst
from testbed.verdict.link_changes import LinkChanges

_FRAME_BITS = 8 * ETHERNET_FRAME_BYTES
_MOST_ALIKE = 24  # paths of like links that are measured; a fifth of a second for each
# Configured loss may cost so many probes by chance, and jitter so many standard deviations: more of
# them happen once in a million paths.
_CHANCE, _CHANCE_DEVIATIONS = 1e-6, 4.9


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
        beyond_s = abs(self.rtt_s - self.configured_rtt_s) - self.rtt_chance_s
        return 0.0 if beyond_s < 0 else beyond_s  # what is not a number stays so

    def rtt_limit(self, limits: Mapping[str, Any]) -> tuple[float, str]:
        """The limit in seconds and its key: a share of the round trip, or a time that is more."""
        # For each switch, since each receives a whole frame before it sends it on.
        least_s = limits["rtt_error_s"] * max(1, self.switches)
        share_s = limits["rtt_error"] * self.configured_rtt_s
        return worst([(least_s, "rtt_error_s"), (share_s, "rtt_error")])


@dataclass(frozen=True, kw_only=True)
class QueueCalibration:
    """The queue at `sender`'s end of `link`.

    Attributes:
        limit_bytes: as configured.
        peak_bytes: the longest queue that was seen; None: not measured.
        resolution_bytes: a full queue may have looked shorter by this much: a frame did not fit
            any more, and others left between the last refusal and the reading.
        refused: frames that found the queue full.
        reason: why it was not measured.
    """

    link: str
    sender: str
    limit_bytes: int
    peak_bytes: int | None = None
    resolution_bytes: int = 0
    refused: int = 0
    reason: str = ""

    @property
    def place(self) -> str:
        return f"{self.link} from {self.sender}"

    @property
    def error(self) -> float | None:
        """The distance of the full queue from its limit, as a share of it."""
        if self.peak_bytes is None:
            return None
        beyond = self.peak_bytes - self.limit_bytes
        short = self.limit_bytes - self.peak_bytes - self.resolution_bytes
        return max(0, beyond, short) / self.limit_bytes


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The measurements. `left_out` paths were not measured, each like one that was."""

    paths: list[PathCalibration]
    queues: list[QueueCalibration] = field(default_factory=list)
    left_out: int = 0
    took_s: float = 0.0

    @property
    def note(self) -> str:
        alike = f"{self.left_out} more paths have one like them among those measured"
        return alike if self.left_out else ""

    def as_json(self) -> dict[str, Any]:
        links = [asdict(path) for path in self.paths]
        queues = [asdict(queue) | {"error": queue.error} for queue in self.queues]
        for record in (*links, *queues):
            record["from"] = record.pop("sender")
        for record in links:
            record["to"] = record.pop("receiver")
        return {
            "links": links,
            "queues": queues,
            "paths_left_out": self.left_out,
            "took_s": self.took_s,
        }


class _Path(NamedTuple):
    """A direction between two hosts as it is configured."""

    sender: HostInfo
    receiver: HostInfo
    rate_bps: int
    rtt_s: float = 0.0
    hops: int = 2
    loss: float = 0.0
    probe_loss: float = 0.0
    delivered_share: float = 1.0  # of the rate, where the path is full
    jitters_s: tuple[float, ...] = ()  # of the links that have one, one way


def calibrate(network: LabInfo, *, most_alike: int = _MOST_ALIKE) -> Calibration:
    """Measure both directions between the server and every other host, and every link's queue."""
    began_s = time.monotonic()
    queues = _fill_all(network)
    paths_of_all = list(_paths(network))
    chosen = _chosen(paths_of_all, most_alike)
    trips = _all_round_trips(chosen)
    return Calibration(
        paths=[_measured(path, of_path) for path, of_path in zip(chosen, trips, strict=True)],
        queues=queues,
        left_out=len(paths_of_all) - len(chosen),
        took_s=time.monotonic() - began_s,
    )


def _paths(network: LabInfo) -> Iterator[_Path]:
    description = network.as_json()
    links = {link.name: link for link in network.links}

    def between(first: HostInfo, second: HostInfo) -> list[LinkEnds]:
        return [links[hop.name] for hop in paths.path(description, first.name, second.name)]

    # A network whose hosts have names of their own is measured from the first one.
    server = network.hosts.get("server") or next(iter(network.hosts.values()))
    for host in network.hosts.values():
        if host is not server:
            there, back = between(host, server), between(server, host)
            yield path_over(host, server, there, back)
            yield path_over(server, host, back, there)


def path_over(
    sender: HostInfo, receiver: HostInfo, there: Sequence[LinkEnds], back: Sequence[LinkEnds]
) -> _Path:
    """Describe the path over these links in order; probes come back over the others."""
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


def _chosen(all_paths: Sequence[_Path], most_alike: int) -> list[_Path]:
    alike: dict[tuple[object, ...], list[_Path]] = {}
    for path in all_paths:
        alike.setdefault(path[2:], []).append(path)
    chosen = []
    for group in alike.values():
        # Directions alternate: an even stride would choose one of them only.
        stride = 1 if len(group) <= most_alike else -(-len(group) // most_alike) | 1
        chosen.extend(group[::stride])
    return chosen


def _measured(path: _Path, trips: Sequence[float | None]) -> PathCalibration:
    answered = [trip for trip in trips if trip is not None]
    if not answered:
        raise _no_answer(path)
    rate = _rate(path)
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


# Round trips

# In a batch other work may delay all probes, but hardly in most of the batches.
_BATCHES, _MOST_IN_BATCH, _LONGEST_BATCH_S, _BETWEEN_BATCHES_S = 4, 5, 0.025, 0.03
_MOST_TRIES = 60  # until a probe comes back, where links are configured to lose most of them
# Beyond twice the round trip: of the first probe, of a later one, of one that may well be lost.
_FIRST_TIMEOUT_S, _ANSWER_TIMEOUT_S, _LOST_TIMEOUT_S = 2.5, 0.5, 0.1
_CONCURRENT_PROBES = 16
_DELAYED_S = 0.002  # round trips longer than this are waited for on many paths at once


def warm_up(network: LabInfo) -> None:
    """Send one packet over every path and back: with the first, the switch makes its socket."""

    def once(path: _Path) -> None:
        # The very first packet may get lost while flows are being set up.
        tries, timeout_s = 2, _FIRST_TIMEOUT_S
        if path.probe_loss:
            tries, timeout_s = _MOST_TRIES, _ANSWER_TIMEOUT_S
        with _ends(path, timeout_s) as (source, sink):
            if all(_round_trip(source, sink) is None for _ in range(tries)):
                raise _no_answer(path)

    with ThreadPoolExecutor(_CONCURRENT_PROBES) as pool:
        list(pool.map(once, _paths(network)))


def _all_round_trips(chosen: Sequence[_Path]) -> list[list[float | None]]:
    """Measure the round trips of delayed paths at the same time, then of the others in turn."""
    with ThreadPoolExecutor(_CONCURRENT_PROBES) as pool:
        delayed = [path for path in chosen if path.rtt_s > _DELAYED_S]
        trips = dict(zip(map(id, delayed), pool.map(_round_trips, delayed), strict=True))
    return [trips.get(id(path)) or _round_trips(path) for path in chosen]


def _round_trips(path: _Path) -> list[float | None]:
    most = int(_LONGEST_BATCH_S / path.rtt_s) if path.rtt_s else _MOST_IN_BATCH
    count = min(_MOST_IN_BATCH, max(1, most))
    trips: list[float | None] = []
    with _ends(path, _LOST_TIMEOUT_S if path.probe_loss else _ANSWER_TIMEOUT_S) as (source, sink):
        for _ in range(_BATCHES):
            time.sleep(_BETWEEN_BATCHES_S)
            trips += [_round_trip(source, sink) for _ in range(count)]
        while path.probe_loss and not any(trips) and len(trips) < _MOST_TRIES:
            trips.append(_round_trip(source, sink))
    return trips


def median_chance_s(jitters_s: Sequence[float], count: int) -> float:
    """Bound what jitter does to the median of `count` round trips: more once in a million."""
    deviation_s = math.sqrt(2 / 3 * sum(jitter_s**2 for jitter_s in jitters_s))
    # As for a normal distribution; a sum of even ones has shorter tails.
    return _CHANCE_DEVIATIONS * math.sqrt(math.pi / 2) * deviation_s / math.sqrt(count)


def _no_answer(path: _Path) -> CommandError:
    lossy = f"; configured to lose {path.probe_loss:.4g} of round trips" if path.probe_loss else ""
    return CommandError(f"no answer from {path.receiver.name} to {path.sender.name}{lossy}")


@contextmanager
def _ends(path: _Path, timeout_s: float) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A UDP socket at either end, which waits for so long and for two round trips."""
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket_in(host.pid, socket.AF_INET, socket.SOCK_DGRAM))
            for host in (path.sender, path.receiver)
        ]
        for end, host in zip(opened, (path.sender, path.receiver), strict=True):
            end.bind((host.address, 0))
            end.settimeout(timeout_s + 2 * path.rtt_s)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        yield opened[0], opened[1]


def _round_trip(source: socket.socket, sink: socket.socket) -> float | None:
    began_s = time.monotonic()
    try:
        source.sendto(b"probe", sink.getsockname())
        sink.sendto(*sink.recvfrom(16))
        source.recv(16)
    except TimeoutError:
        return None
    return time.monotonic() - began_s


# Rates of saturated paths

_SO_TIMESTAMPNS, _SO_RCVBUFFORCE = 35, 33
_RECEIVE_BUFFER_BYTES = 64 << 20
_FRAME_MEMORY_BYTES = 2560  # what the kernel charges for a full frame, and some more
_NUMBER = struct.Struct("!I")  # at the start of a frame's payload
_PAYLOAD_BYTES = ETHERNET_FRAME_BYTES - 14 - 20 - 8
# A processor that is taken away for a moment spoils few of many short stretches. Shorter ones would
# measure the shaper's bucket (half a millisecond) and the timers instead of the rate. Jitter moves
# the ends of a stretch: where there is some, stretches are long enough for it to matter little;
# what it does all the same, a simulation of so many stretches says.
_STRETCH_S, _STRETCH_JITTERS, _LONGEST_STRETCH_S = 0.005, 30, 0.2
_SIMULATED_STRETCHES = 200
_MOST_STRETCHES, _LEAST_STRETCHES = 40, 16
_MOST_FRAMES = 8192
_SILENT_FRAMES = 50
# A machine that was disturbed is measured for longer; what it showed so far counts all the same.
_MOST_BLASTS = 4
_GOOD_ERROR, _GOOD_SPREAD = 0.005, 0.01
_IQR_OF_NORMAL = 1.349  # in standard deviations


class Rate(NamedTuple):
    median_bps: float
    spread: float  # interquartile range over the configured rate, without what chance explains
    trials: int


def _rate(path: _Path) -> Rate:
    """Saturate a path, once more where it looks disturbed, up to four times."""
    # Where a full path delivers 1 - `loss` of its rate, no queue on the way overflows: then the
    # frames' numbers tell exactly what was sent.
    numbered = path.loss > 0 and abs(path.delivered_share - (1 - path.loss)) < 1e-9
    chance = chance_spread(path.rate_bps, 0.0 if numbered else path.loss, path.jitters_s)
    frames = stretch_frames(path.rate_bps, path.jitters_s)
    count = blast_frames(path.rate_bps, path.jitters_s)
    share = None if numbered else path.delivered_share
    trials_bps: list[float] = []
    silence_s = _ANSWER_TIMEOUT_S
    if path.loss:
        silence_s = _LOST_TIMEOUT_S + _SILENT_FRAMES * _FRAME_BITS / path.rate_bps
    with _ends(path, silence_s) as (source, sink):
        sink.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        with suppress(PermissionError):  # an ordinary user's sink holds some 180 frames
            sink.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
        for _ in range(_MOST_BLASTS):
            arrivals = _blast(source, sink, count, lossy=path.loss > 0)
            trials_bps += stretches_bps(arrivals, frames, delivered_share=share)
            rate = summary(trials_bps, path.rate_bps, chance=chance)
            error = abs(rate.median_bps / path.rate_bps - 1)
            if error <= _GOOD_ERROR and rate.spread <= _GOOD_SPREAD:
                break
    return rate


def stretches_bps(
    arrivals: Sequence[tuple[int, float]], frames: int, *, delivered_share: float | None = 1.0
) -> list[float]:
    """List the rates of all stretches, before losses; without a share by frames' numbers."""
    steady = arrivals[max(frames, len(arrivals) // 8) :]  # the first leave with full buckets
    rates = []
    for first in range(0, len(steady) - frames, frames):
        (number, at_s), (last_number, last_s) = steady[first], steady[first + frames]
        carried = frames / delivered_share if delivered_share else last_number - number
        took_s = last_s - at_s
        rates.append(carried * _FRAME_BITS / took_s if took_s > 0 else math.inf)
    return rates


def summary(trials_bps: Sequence[float], rate_bps: int, *, chance: float = 0.0) -> Rate:
    """Take median and spread of trials; without any, a rate of 0."""
    if len(trials_bps) < 2:
        return Rate(sum(trials_bps), 1.0, len(trials_bps))
    low_bps, median_bps, high_bps = statistics.quantiles(trials_bps, method="inclusive")
    spread = (high_bps - low_bps) / rate_bps
    return Rate(median_bps, math.sqrt(max(0.0, spread**2 - chance**2)), len(trials_bps))


def chance_spread(rate_bps: int, loss: float, jitters_s: Sequence[float] = ()) -> float:
    """Simulate the interquartile range that losses and jitter give to the time of a stretch."""
    frames = stretch_frames(rate_bps, jitters_s)
    lost = _IQR_OF_NORMAL * math.sqrt(loss / frames)
    if not jitters_s:
        return lost
    frame_s = _FRAME_BITS / rate_bps
    random = np.random.default_rng(0)
    arrivals_s = np.arange(frames * _SIMULATED_STRETCHES) * frame_s
    for jitter_s in jitters_s:  # as `testbed.lab.delay` defines it
        drawn_s = arrivals_s + random.uniform(-jitter_s, jitter_s, len(arrivals_s))
        arrivals_s = np.maximum.accumulate(drawn_s)
    low, high = np.quantile(np.diff(arrivals_s[::frames]), (0.25, 0.75)) / (frames * frame_s)
    return math.hypot(lost, float(high - low))


def stretch_frames(rate_bps: int, jitters_s: Sequence[float] = ()) -> int:
    stretch_s = min(_STRETCH_S + _STRETCH_JITTERS * sum(jitters_s), _LONGEST_STRETCH_S)
    return max(1, round(rate_bps * stretch_s / _FRAME_BITS))


def blast_frames(rate_bps: int, jitters_s: Sequence[float] = ()) -> int:
    """Count the frames of a blast: 0.2 s of them, fewer where they are many, more where few."""
    stretch = stretch_frames(rate_bps, jitters_s)
    stretches = min(_MOST_STRETCHES, max(_LEAST_STRETCHES, _MOST_FRAMES // stretch))
    if stretch == 1:  # a slow link: its frames last long
        stretches = max(_LEAST_STRETCHES, int(0.3 * rate_bps / _FRAME_BITS))
    return stretch * stretches * 8 // 7 + 2


def _blast(
    source: socket.socket, sink: socket.socket, count: int, *, lossy: bool
) -> list[tuple[int, float]]:
    """Send `count` frames, as fast as the sender's own queue takes them; return the arrivals."""
    target, rest = sink.getsockname(), bytes(_PAYLOAD_BYTES - _NUMBER.size)

    def send() -> None:
        for number in range(count):  # blocks while the host's own queue is full
            source.sendto(_NUMBER.pack(number) + rest, target)

    # Two threads of Python hinder each other above 200 Mbit/s. So all is sent before any is read,
    # unless the sink cannot hold it.
    held = sink.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // _FRAME_MEMORY_BYTES
    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    if count <= held:
        sending.join()
    arrivals: list[tuple[int, float]] = []
    with suppress(TimeoutError):
        while len(arrivals) < count:
            frame, ancillary, _, _ = sink.recvmsg(_PAYLOAD_BYTES, 64)
            seconds, nanoseconds = struct.unpack("qq", ancillary[0][2][:16])
            arrivals.append((_NUMBER.unpack_from(frame)[0], seconds + nanoseconds * 1e-9))
            if lossy and arrivals[-1][0] == count - 1:
                break
    sending.join()
    return arrivals


# Queues

# Destination, source (locally administered, of no host).
_HEADER = bytes.fromhex("02000000ca1b 02000000ca1c") + OWN_ETHERTYPE.to_bytes(2)
_FRAME = _HEADER.ljust(ETHERNET_FRAME_BYTES, b"\0")
_SO_SNDBUFFORCE, _SEND_BUFFER_BYTES = 32, 128 << 20
_MOST_SOCKETS = 64
_FILLINGS = 4
_PATIENCE_S, _SLOWEST_FILLING_BYTES_PER_S = 0.1, 100e6
_LONGEST_DRAIN_S, _DRAIN_POLL_S = 1.0, 0.002
# RED as `shaping.mark` sets it drops at its limit only. (These frames cannot be marked.)
_LIMITED_IN_BYTES = ("bfifo", "red")


def _fill_all(network: LabInfo) -> list[QueueCalibration]:
    """Fill every queue of an idle network and wait until all are empty again."""
    ends = [(link, end) for link in network.links for end in (link.first, link.second)]
    measured = [_fill(link, end) for link, end in ends]
    # One that would take long to drain is let out at a higher rate for a while.
    slow = [
        (link, end) for link, end in ends if link.queue_bytes * 8 / link.rate_bps > _LONGEST_DRAIN_S
    ]
    for link, end in slow:
        _set_rate(link, end, int(link.queue_bytes * 8 / _LONGEST_DRAIN_S))
    deadline_s = time.monotonic() + 2 * _LONGEST_DRAIN_S
    while any(_backlog(end)[0] for _, end in ends) and time.monotonic() < deadline_s:
        time.sleep(_DRAIN_POLL_S)
    for link, end in slow:
        _set_rate(link, end, link.rate_bps)
    return measured


def _set_rate(link: LinkEnds, end: Port, rate_bps: int) -> None:
    with Rtnetlink(end.pid) as kernel:
        shape = LinkShape(rate_bps=rate_bps, queue_bytes=link.queue_bytes)
        kernel.send([rate_message(kernel.interface(end.interface), shape)])


def _fill(link: LinkEnds, end: Port) -> QueueCalibration:
    calibration = partial(
        QueueCalibration, link=link.name, sender=end.node, limit_bytes=link.queue_bytes
    )
    kind = _backlog(end)[1]
    if kind not in _LIMITED_IN_BYTES:
        return calibration(reason=f"its limit is not one in bytes ({kind or 'none'})")
    with ExitStack() as stack:
        sockets = [stack.enter_context(_packet_socket(end))]
        peak_bytes = refused = 0
        resolution_bytes = link.queue_bytes
        patience_s = _PATIENCE_S + link.queue_bytes / _SLOWEST_FILLING_BYTES_PER_S
        for _ in range(_FILLINGS):
            if not _send_until_refused(sockets, end, stack, patience_s):
                break
            refused += 1
            refused_s = time.monotonic()
            backlog_bytes = _backlog(end)[0]
            drained_bytes = (time.monotonic() - refused_s) * link.rate_bps / 8
            peak_bytes = max(peak_bytes, backlog_bytes)
            resolution_bytes = min(resolution_bytes, int(2 * ETHERNET_FRAME_BYTES + drained_bytes))
    if not refused:
        return calibration(reason="this process could not send faster than the link drains")
    return calibration(peak_bytes=peak_bytes, resolution_bytes=resolution_bytes, refused=refused)


def _send_until_refused(
    sockets: list[socket.socket], end: Port, stack: ExitStack, patience_s: float
) -> bool:
    """Send until the queue refuses a frame; False if that did not happen within the time."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            for _ in range(16):
                sockets[-1].send(_FRAME)
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return True
            if error.errno != errno.EAGAIN:
                raise
            # The socket's own buffer is full, an ordinary user's soon: open another socket.
            if len(sockets) == _MOST_SOCKETS:
                return False
            sockets.append(stack.enter_context(_packet_socket(end)))
    return False


def _packet_socket(end: Port) -> socket.socket:
    opened = socket_in(end.pid, socket.AF_PACKET, socket.SOCK_RAW)
    opened.setblocking(False)
    with suppress(PermissionError):
        opened.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER_BYTES)
    opened.bind((end.interface, 0))
    return opened


def _backlog(end: Port) -> tuple[int, str]:
    with entered(end.pid):
        return link_counters.waiting(end.interface)


# The gates


def rate(calibration: Calibration) -> Finding:
    value, where = worst((path.rate_error, path.ends) for path in calibration.paths)
    return Finding(value=value, where=where, note=calibration.note)


def rate_spread(calibration: Calibration) -> Finding:
    value, where = worst((path.rate_spread, path.ends) for path in calibration.paths)
    return Finding(value=value, where=where, note=calibration.note)


def round_trip(calibration: Calibration, limits: Mapping[str, Any]) -> Finding:
    by_ends = {path.ends: path for path in calibration.paths}
    _, ends = worst(
        (path.rtt_error_s() - path.rtt_limit(limits)[0], path.ends) for path in by_ends.values()
    )
    limit_s, key = by_ends[ends].rtt_limit(limits)
    error_s = by_ends[ends].rtt_error_s()
    return Finding(value=error_s, key=key, limit=limit_s, where=ends, note=calibration.note)


def idle_loss(calibration: Calibration, limits: Mapping[str, Any]) -> Finding:
    lossy = max(calibration.paths, key=lambda path: path.lost - path.lost_by_chance())
    by_chance = ""
    if lossy.configured_probe_loss:
        by_chance = (
            f"configured loss takes {lossy.configured_probe_loss:.4g} of round trips, and by "
            f"chance up to {lossy.lost_by_chance():.4g} of {lossy.probes_sent} probes"
        )
    return Finding(
        value=lossy.lost,
        limit=min(1.0, limits["idle_loss"] + lossy.lost_by_chance()),
        where=lossy.ends if lossy.probes_lost else "",
        note="; ".join(filter(None, (by_chance, calibration.note))),
    )


def queue_limits(calibration: Calibration) -> Finding:
    queues = calibration.queues
    if not queues:
        return Finding(note="there is no queue")
    errors = [(queue.error, queue.place) for queue in queues if queue.error is not None]
    value, where = worst(errors) if errors else (None, "")
    missing = ""
    if unfilled := [queue for queue in queues if queue.error is None]:
        missing = (
            f"{len(unfilled)} of {len(queues)} queues not filled, such as {unfilled[0].place}: "
            f"{unfilled[0].reason}"
        )
    return Finding(value=value, where=where, missing=missing)


def socket_buffer(
    network: LabInfo, changes: LinkChanges, switch_holds_bytes: int | None
) -> Finding:
    """All ports send through one socket: a queue that it cannot hold would never fill."""
    # That several fill at once is rare; what the socket then refuses fails the conservation.
    if switch_holds_bytes is None:
        return Finding(note="the kernel's datapath sends by no socket")
    deepest_bytes = max(
        max(link.queue_bytes, changes.shape(link, end.node).queue_bytes)
        + (link.priority_queue_bytes or 0)
        for link in network.links
        for end in (link.first, link.second)
    )
    return Finding(value=max(0, deepest_bytes - switch_holds_bytes))
