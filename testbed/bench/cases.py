"""The benchmark's cases: which transfers, over which links, by which peers."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from testbed.bench.network import LinkKind
from testbed.transport import CONGESTION_CONTROLS, REPAIRS
from testbed.transport.wire import DEFAULT_CHUNK_BYTES

MOST_REPETITIONS = 12
OURS = "ours"
GLOO = "gloo"
LARGEST_FIRST = "largest-magnitude-first"
TCP = ("tcp-reno", "tcp-cubic", "tcp-bbr")
_100M, _1G, _10G = 100_000_000, 1_000_000_000, 10_000_000_000
_MODEL_BYTES = 244_000_000  # of float32 gradients: AlexNet's 61 million
_MAC_BYTES = 16  # appended to a datagram, which must not grow
LOSSES = (0.0, 0.01, 0.1, 0.3, 0.6, 0.9)
TOLERANCES = (0.0, 0.008, 0.408)
# `once` repairs nothing, so no reliable transfer would end with it.
_REPAIRS = tuple(name for name in REPAIRS if name != "once")
_TWO_REPAIRS = ("passes", "streaming")
# What `quick` measures, and how of it.
_QUICK = (
    *("100M/loss-0%/P-0.8%/*", "100M/loss-60%/P-0.8%/*", "100M/loss-0%/tcp-*", "100M/loss-0%/gloo"),
    *("100M/rtt-10ms/loss-60%/*", "100M/incast-8/fixed", "100M/incast-8/tcp-cubic"),
    *("veth/*/passes", "veth/*/selective", "veth/*/streaming", "veth/*/tcp-cubic", "veth/*/gloo"),
)
_QUICK_LIMIT_S, _QUICK_BYTES = 8.0, 64 << 20
_TWICE: dict[str, Any] = {"repeats": 2, "most": 2, "warm_ups": 0}
# Past 10 % loss TCP's back-off takes minutes: once is enough to say that.
_HOPELESS: dict[str, Any] = {"repeats": 1, "most": 1, "warm_ups": 0, "limit_s": 6}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One transfer, repeated on one kind of link until the interval of its median is narrow."""

    name: str
    link: LinkKind
    peer: str = OURS  # or `gloo`, `tcp-` and a congestion control, an adapter's name
    payload_bytes: int = 1_000_000  # of each sender
    pace_bps: int | None = None  # of ours, where the link has no rate
    tolerance: float = 0.0
    repair: str = "passes"
    congestion_control: str = "fixed"
    order: str = "in-order"
    authenticate: bool = False
    encrypt: bool = False
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    repeats: int = 3  # measured transfers at least
    most: int = MOST_REPETITIONS
    warm_ups: int = 1  # they fault memory in and teach congestion controls
    limit_s: float = 20.0  # for one transfer

    @property
    def rate_bps(self) -> float | None:
        """A sender's share of the link, or its pace; None is unlimited."""
        if self.link.rate_bps is None:
            return self.pace_bps
        return self.link.rate_bps / self.link.workers

    @property
    def is_other(self) -> bool:
        return self.peer not in (OURS, GLOO, *TCP)

    @property
    def given_up(self) -> float:
        """The share of the payload that may be missing; kernel TCP and Gloo have no tolerance."""
        return self.tolerance if self.peer == OURS or self.is_other else 0.0


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The cases whose names match a shell pattern; with `other`, of that implementation's bench."""

    pattern: str = "*"
    quick: bool = False  # only a few cases, once or twice
    other: str | None = None

    def cases(self) -> list[Case]:
        every = _all() if self.other is None else _beside_other(self.other)
        if self.quick:
            every = (_shortened(case) for case in every if _matches(case, *_QUICK))
        matching = [case for case in every if _matches(case, self.pattern)]
        order = list(dict.fromkeys(case.link for case in matching))
        return sorted(matching, key=lambda case: order.index(case.link))


def _matches(case: Case, *patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)


def _shortened(case: Case) -> Case:
    return replace(
        case,
        payload_bytes=min(case.payload_bytes, _QUICK_BYTES),
        limit_s=min(case.limit_s, _QUICK_LIMIT_S),
        **_TWICE,
    )


def _percent(share: float) -> str:
    return f"{share * 100:g}%"


def _each(base: Case, axis: str, names: Iterable[str], **changes: Any) -> Iterator[Case]:
    """The same transfer with each repair or congestion control, after which it is named."""
    for name in names:
        yield replace(base, name=f"{base.name}/{name}", **(changes | {axis: name}))


def _by_tcp(base: Case, peers: Iterable[str], **changes: Any) -> Iterator[Case]:
    """The same transfer by kernel TCPs, whose names end with their congestion control."""
    for peer in peers:
        control = peer.removeprefix("tcp-")
        yield from _each(base, "peer", [peer], congestion_control=control, **changes)


def _by_loss() -> Iterator[Case]:
    """100 Mbit/s without added delay: every repair against every loss, tolerances, and TCP."""
    for loss in LOSSES:
        base = Case(name=f"100M/loss-{_percent(loss)}", link=LinkKind(rate_bps=_100M, loss=loss))
        for repair in _REPAIRS:
            for tolerance in TOLERANCES:
                name = f"{base.name}/P-{_percent(tolerance)}/{repair}"
                yield replace(base, name=name, tolerance=tolerance, repair=repair)
        yield from _by_tcp(base, TCP, **(_HOPELESS if loss > 0.1 else {}))
        # Gloo chooses its own ports and congestion control, so its loss would not be the others'.
        if loss == 0:
            yield from _each(base, "peer", [GLOO], limit_s=8.0)


def _by_rtt() -> Iterator[Case]:
    """Round trips of 1 and 10 ms: the same megabyte, and payloads of two round trips."""
    for rtt_s in (0.001, 0.01):
        for loss in (0.0, 0.01, 0.6, 0.9):
            link = LinkKind(rate_bps=_100M, rtt_s=rtt_s, loss=loss)
            name = f"100M/rtt-{rtt_s * 1e3:g}ms/loss-{_percent(loss)}"
            base = Case(name=name, link=link, tolerance=0.008)
            size = int(2 * rtt_s * _100M / 8 * 0.95)
            short = replace(base, name=f"{name}/short", payload_bytes=size, repeats=5)
            for repair in _REPAIRS:
                yield from _each(base, "repair", [repair])
                if loss >= 0.6 and rtt_s >= 0.01:
                    yield from _each(short, "repair", [repair])
            yield from _by_tcp(base, TCP if loss <= 0.1 else (), tolerance=0.0)


def _incast() -> Iterator[Case]:
    """Eight and 32 senders into one 100 Mbit/s link, which together send 16 MB."""
    for workers, repair, limit_s, controls, peers in (
        (8, _REPAIRS[-1], 20, tuple(CONGESTION_CONTROLS), TCP),
        (32, "streaming", 30, ("fixed",), TCP[1:2]),
    ):
        base = Case(
            name=f"100M/incast-{workers}",
            link=LinkKind(rate_bps=_100M, workers=workers),
            payload_bytes=16_000_000 // workers,
            repair=repair,
            tolerance=0.008,
            limit_s=limit_s,
            repeats=2,
            most=3,
        )
        yield from _each(base, "congestion_control", controls)
        yield from _by_tcp(base, peers, tolerance=0.0)


def _bare(offloads: bool, size: int) -> Case:
    """One stream over a bare veth pair: what the transport itself costs."""
    name = f"veth/offloads-{'on' if offloads else 'off'}"
    return Case(name=name, link=LinkKind(offloads=offloads), payload_bytes=size << 20, repeats=5)


def _unshaped() -> Iterator[Case]:
    for offloads, size in ((True, 256), (False, 128)):
        base = _bare(offloads, size)
        yield from _each(base, "repair", _REPAIRS)
        yield from _by_tcp(base, TCP)
        if offloads:
            yield from _each(base, "peer", [GLOO])


def _in_orders() -> Iterator[Case]:
    """Chunks that are not sent in the order in which they lie: compare with the plain repair."""
    base = _bare(True, 256)
    for order, short in (("shuffled", "shuffled"), (LARGEST_FIRST, "largest-first")):
        yield replace(base, name=f"{base.name}/passes+{short}", order=order)


def _authenticated() -> Iterator[Case]:
    """The paced cases with 16 bytes on every datagram; their cost is that of `P-0%` beside them."""
    for repair, encrypt in itertools.product(_TWO_REPAIRS, (False, True)):
        yield Case(
            name=f"100M/loss-0%/P-0%/{repair}+{'encrypted' if encrypt else 'auth'}",
            link=LinkKind(rate_bps=_100M),
            repair=repair,
            authenticate=True,
            encrypt=encrypt,
            chunk_bytes=DEFAULT_CHUNK_BYTES - _MAC_BYTES,
        )


def _fast_links() -> Iterator[Case]:
    """Paced at 1 and 10 Gbit/s: a small model's gradients, and a large one's."""
    small = Case(name="1G/20MB", link=LinkKind(rate_bps=_1G), payload_bytes=20_000_000)
    # A queue that lets single packets go at this rate costs more than the transport.
    link = LinkKind(offloads=True)
    large = Case(name="10G/244MB", link=link, payload_bytes=_MODEL_BYTES, pace_bps=_10G)
    for base, peers in ((small, TCP), (large, TCP[1:2])):
        yield from _each(base, "repair", _TWO_REPAIRS)
        yield from _by_tcp(base, peers, pace_bps=None)


def _beside_other(other: str) -> Iterator[Case]:
    """Another implementation, and beside it ours and kernel TCP: each the same payload and link."""
    for speed, rate_bps, payload_bytes, losses in (
        ("100M", _100M, 1_000_000, (0.0, 0.01, 0.1, 0.6, 0.9)),
        ("1G", _1G, 20_000_000, (0.0, 0.01, 0.6)),
    ):
        for loss in losses:
            link, name = LinkKind(rate_bps=rate_bps, loss=loss), f"{speed}/loss-{_percent(loss)}"
            base = Case(name=name, link=link, payload_bytes=payload_bytes)
            for tolerance in TOLERANCES[1:]:
                lossy = replace(base, name=f"{name}/P-{_percent(tolerance)}", tolerance=tolerance)
                yield from _each(lossy, "peer", [other])
                yield from _each(lossy, "repair", _TWO_REPAIRS)
            if loss <= 0.1:
                yield from _by_tcp(base, TCP[1:2])


def _all() -> Iterator[Case]:
    parts = (_by_loss, _by_rtt, _incast, _unshaped, _authenticated, _fast_links, _in_orders)
    return itertools.chain.from_iterable(part() for part in parts)
