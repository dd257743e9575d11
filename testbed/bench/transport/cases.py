"""The benchmark's cases: which transfers, over which links, by which peers."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from testbed.bench import repetition
from testbed.bench.transport.network import LinkKind
from testbed.transport.core.wire import DEFAULT_CHUNK_BYTES

OURS = "ours"
GLOO = "gloo"
LARGEST_FIRST = "largest-magnitude-first"
TCP = ("tcp-reno", "tcp-cubic", "tcp-bbr")
_100M, _1G, _10G = 100_000_000, 1_000_000_000, 10_000_000_000
_MODEL_BYTES = 244_000_000  # of float32 gradients: AlexNet's 61 million
_MAC_BYTES, _CRC_BYTES = 16, 4  # appended to a datagram, which must not grow
LOSSES = (0.0, 0.01, 0.1, 0.3, 0.6, 0.9)
TOLERANCES = (0.0, 0.008, 0.408)


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
    checksum: bool = False
    authenticate: bool = False
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    repeats: int = 3  # measured transfers at least
    most: int = repetition.MOST
    warm_ups: int = 1  # they fault memory in and teach congestion controls
    limit_s: float = 20.0  # for one transfer

    @property
    def rate_bps(self) -> float | None:
        """What one sender may send at: its share of the link, or its pace; None: unlimited."""
        if self.link.rate_bps is None:
            return self.pace_bps
        return self.link.rate_bps / self.link.workers

    @property
    def is_other(self) -> bool:
        """Whether another implementation is driven, through an adapter."""
        return self.peer not in (OURS, GLOO, *TCP)

    @property
    def given_up(self) -> float:
        """The share of the payload that may be missing: kernel TCP and Gloo have no tolerance."""
        return self.tolerance if self.peer == OURS or self.is_other else 0.0


def _percent(share: float) -> str:
    return f"{share * 100:g}%"


@dataclass(frozen=True)
class _Axes:
    repairs: tuple[str, ...]
    controls: tuple[str, ...]
    quick: bool


Size = Literal["quick", "usual", "full"]
"""A few cases, those of a usual run, or also those that take long."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The cases whose names match a shell pattern; with `other`, of that implementation's bench."""

    pattern: str = "*"
    size: Size = "usual"
    other: str | None = None

    def cases(self) -> list[Case]:
        """The cases whose name matches, ordered by link so that each is made once."""
        wanted = [case for case in self._all() if fnmatch.fnmatchcase(case.name, self.pattern)]
        order = list(dict.fromkeys(case.link for case in wanted))
        return sorted(wanted, key=lambda case: order.index(case.link))

    def _all(self) -> Iterator[Case]:
        if self.other is not None:
            yield from _beside_other(self.other, quick=self.size == "quick")
            return
        from testbed.transport import CONGESTION_CONTROLS, REPAIRS

        # DCTCP needs marks of the path, which no link here makes.
        controls = tuple(name for name in CONGESTION_CONTROLS if name != "dctcp")
        # `once` repairs nothing, so no reliable transfer would end with it.
        repairs = tuple(name for name in REPAIRS if name != "once")
        axes = _Axes(repairs=repairs, controls=controls, quick=self.size == "quick")
        for part in _PARTS[self.size]:
            yield from part(axes)


def _of_peer(base: Case, peer: str, **changes: Any) -> Case:
    """The same transfer by a kernel TCP, whose name ends with its congestion control."""
    control = peer.removeprefix("tcp-")
    return replace(
        base, name=f"{base.name}/{peer}", peer=peer, congestion_control=control, **changes
    )


def _by_loss(axes: _Axes) -> Iterator[Case]:
    """100 Mbit/s without added delay: every repair against every loss, tolerances, and TCP."""
    losses: Iterable[float] = (0.0, 0.6) if axes.quick else LOSSES
    for loss in losses:
        link = LinkKind(rate_bps=_100M, loss=loss)
        base = Case(name=f"100M/loss-{_percent(loss)}", link=link)
        if axes.quick:
            base = replace(base, repeats=2, most=2, warm_ups=0, limit_s=4)
        for repair in axes.repairs:
            for tolerance in TOLERANCES if not axes.quick else TOLERANCES[1:2]:
                yield replace(
                    base,
                    name=f"{base.name}/P-{_percent(tolerance)}/{repair}",
                    tolerance=tolerance,
                    repair=repair,
                )
        for peer in TCP if loss <= 0.1 or not axes.quick else ():
            # Past 10 % loss TCP's back-off takes minutes: once is enough to say that.
            hopeless = {"repeats": 1, "most": 1, "warm_ups": 0, "limit_s": 6} if loss > 0.1 else {}
            yield _of_peer(base, peer, **hopeless)
        # Gloo chooses its own ports and congestion control, so its loss would not be the others'.
        if loss == 0:
            limit_s = 4.0 if axes.quick else 8.0
            yield replace(base, name=f"{base.name}/gloo", peer=GLOO, limit_s=limit_s)


def _by_rtt(axes: _Axes) -> Iterator[Case]:
    """Round trips of 1 and 10 ms: the same megabyte, and payloads of two round trips."""
    for rtt_s in (0.01,) if axes.quick else (0.001, 0.01):
        for loss in (0.6,) if axes.quick else (0.0, 0.01, 0.6, 0.9):
            link = LinkKind(rate_bps=_100M, rtt_s=rtt_s, loss=loss)
            base = Case(
                name=f"100M/rtt-{rtt_s * 1e3:g}ms/loss-{_percent(loss)}", link=link, tolerance=0.008
            )
            if axes.quick:
                base = replace(base, repeats=2, most=2, warm_ups=0, limit_s=4)
            short = int(2 * rtt_s * _100M / 8 * 0.95)
            for repair in axes.repairs:
                yield replace(base, name=f"{base.name}/{repair}", repair=repair)
                if loss >= 0.6 and rtt_s >= 0.01:
                    yield replace(
                        base,
                        name=f"{base.name}/short/{repair}",
                        repair=repair,
                        payload_bytes=short,
                        repeats=2 if axes.quick else 5,
                    )
            for peer in TCP if loss <= 0.1 and not axes.quick else ():
                yield _of_peer(base, peer, tolerance=0.0)


def _incast(axes: _Axes) -> Iterator[Case]:
    """Eight senders into one 100 Mbit/s link, once per congestion control."""
    workers = 4 if axes.quick else 8
    base = Case(
        name=f"100M/incast-{workers}",
        link=LinkKind(rate_bps=_100M, workers=workers),
        payload_bytes=1_000_000 if axes.quick else 2_000_000,
        repair=axes.repairs[-1],
        tolerance=0.008,
        repeats=1 if axes.quick else 2,
        most=1 if axes.quick else 3,
        limit_s=20,
    )
    for control in axes.controls[:1] if axes.quick else axes.controls:
        yield replace(base, name=f"{base.name}/{control}", congestion_control=control)
    for peer in TCP[1:2] if axes.quick else TCP:
        yield _of_peer(base, peer, tolerance=0.0)


def _unshaped(axes: _Axes) -> Iterator[Case]:
    """One stream over a bare veth pair: what the transport itself costs."""
    for offloads in (True, False):
        base = Case(
            name=f"veth/offloads-{'on' if offloads else 'off'}",
            link=LinkKind(offloads=offloads),
            payload_bytes=(64 if axes.quick else 256 if offloads else 128) << 20,
            repeats=2 if axes.quick else 5,
            most=2 if axes.quick else repetition.MOST,
        )
        for repair in axes.repairs:
            yield replace(base, name=f"{base.name}/{repair}", repair=repair)
        for peer in TCP[1:2] if axes.quick else TCP:
            yield _of_peer(base, peer)
        if offloads:
            yield replace(base, name=f"{base.name}/gloo", peer=GLOO)
            yield replace(
                base,
                name=f"{base.name}/{axes.repairs[0]}+crc32c",
                repair=axes.repairs[0],
                checksum=True,
                chunk_bytes=DEFAULT_CHUNK_BYTES - _CRC_BYTES,
            )


def _authenticated(_: _Axes) -> Iterator[Case]:
    """The paced cases with 16 bytes on every datagram; their cost is that of `P-0%` beside them."""
    for repair in ("passes", "streaming"):
        yield Case(
            name=f"100M/loss-0%/P-0%/{repair}+auth",
            link=LinkKind(rate_bps=_100M),
            repair=repair,
            authenticate=True,
            chunk_bytes=DEFAULT_CHUNK_BYTES - _MAC_BYTES,
        )


def _fast_links(_: _Axes) -> Iterator[Case]:
    """Paced at 1 and 10 Gbit/s: a small model's gradients, and a large one's."""
    small = Case(name="1G/20MB", link=LinkKind(rate_bps=_1G), payload_bytes=20_000_000)
    # A queue that lets single packets go at this rate costs more than the transport.
    link = LinkKind(offloads=True)
    large = Case(name="10G/244MB", link=link, payload_bytes=_MODEL_BYTES, pace_bps=_10G)
    for base, peers in ((small, TCP), (large, TCP[1:2])):
        for repair in ("passes", "streaming"):
            yield replace(base, name=f"{base.name}/{repair}", repair=repair)
        for peer in peers:
            yield _of_peer(base, peer, pace_bps=None)


def _large_and_lossy(_: _Axes) -> Iterator[Case]:
    """A large model's gradients over 1 Gbit/s that loses."""
    for loss in (0.0, 0.01, 0.1):
        link = LinkKind(rate_bps=_1G, loss=loss)
        base = Case(
            name=f"1G/244MB/loss-{_percent(loss)}",
            link=link,
            payload_bytes=_MODEL_BYTES,
            limit_s=30,
        )
        for repair in ("passes", "streaming"):
            yield replace(base, name=f"{base.name}/{repair}", repair=repair)
        # Past 1 % TCP's back-off takes minutes.
        yield from (_of_peer(base, peer) for peer in TCP[1:] if loss <= 0.01)


def _incast_of(workers: int, controls: Iterable[str], peers: Iterable[str] = ()) -> Iterator[Case]:
    """Many senders, which together send what the eight of the usual incast do."""
    base = Case(
        name=f"100M/incast-{workers}",
        link=LinkKind(rate_bps=_100M, workers=workers),
        payload_bytes=16_000_000 // workers,
        repair="streaming",
        tolerance=0.008,
        repeats=2,
        most=3,
        limit_s=30,
    )
    for control in controls:
        yield replace(base, name=f"{base.name}/{control}", congestion_control=control)
    for peer in peers:
        yield _of_peer(base, peer, tolerance=0.0)


def _wide_incast(_: _Axes) -> Iterator[Case]:
    yield from _incast_of(32, ("fixed",), peers=TCP[1:2])


def _wider_incast(axes: _Axes) -> Iterator[Case]:
    yield from _incast_of(32, [name for name in axes.controls if name != "fixed"])
    yield from _incast_of(64, ("fixed",), peers=TCP[1:2])


def _in_orders(repair: str, *, offloads: bool) -> Iterator[Case]:
    """Chunks that are not sent in the order in which they lie: compare with the plain repair."""
    for order, short in (("shuffled", "shuffled"), (LARGEST_FIRST, "largest-first")):
        yield Case(
            name=f"veth/offloads-{'on' if offloads else 'off'}/{repair}+{short}",
            link=LinkKind(offloads=offloads),
            payload_bytes=(256 if offloads else 128) << 20,
            repair=repair,
            order=order,
            repeats=5,
        )


def _by_order(_: _Axes) -> Iterator[Case]:
    yield from _in_orders("passes", offloads=True)


def _by_order_elsewhere(_: _Axes) -> Iterator[Case]:
    yield from _in_orders("streaming", offloads=True)
    yield from _in_orders("passes", offloads=False)
    yield from _in_orders("streaming", offloads=False)


def _beside_other(other: str, *, quick: bool) -> Iterator[Case]:
    """Another implementation, and beside it ours and kernel TCP: each the same payload and link."""
    losses: dict[str, tuple[float, ...]] = {
        "100M": (0.0, 0.6) if quick else (0.0, 0.01, 0.1, 0.6, 0.9)
    }
    if not quick:
        losses["1G"] = (0.0, 0.01, 0.6)
    for speed, loss in ((speed, loss) for speed, each in losses.items() for loss in each):
        rate_bps, payload_bytes = {"100M": (_100M, 1_000_000), "1G": (_1G, 20_000_000)}[speed]
        link = LinkKind(rate_bps=rate_bps, loss=loss)
        name = f"{speed}/loss-{_percent(loss)}"
        base = Case(name=name, link=link, payload_bytes=payload_bytes)
        if quick:
            base = replace(base, repeats=2, most=2, warm_ups=0, limit_s=8)
        for tolerance in TOLERANCES[1:2] if quick else TOLERANCES[1:]:
            name = f"{base.name}/P-{_percent(tolerance)}"
            yield replace(base, name=f"{name}/{other}", peer=other, tolerance=tolerance)
            for repair in ("passes",) if quick else ("passes", "streaming"):
                yield replace(base, name=f"{name}/{repair}", repair=repair, tolerance=tolerance)
        if loss <= 0.1:
            yield _of_peer(base, TCP[1])


_QUICK: tuple[Callable[[_Axes], Iterator[Case]], ...] = (_by_loss, _by_rtt, _incast, _unshaped)
_USUAL = (*_QUICK, _authenticated, _fast_links, _wide_incast, _by_order)
_PARTS = {
    "quick": _QUICK,
    "usual": _USUAL,
    "full": (*_USUAL, _large_and_lossy, _wider_incast, _by_order_elsewhere),
}
