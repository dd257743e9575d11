"""The benchmark's cases: which transfers, over which links, by which peers."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from testbed.bench.transport.network import LinkKind
from testbed.transport.core.wire import DEFAULT_CHUNK_BYTES

OURS = "ours"
GLOO = "gloo"
TCP = ("tcp-reno", "tcp-cubic", "tcp-bbr")
_100M = 100_000_000
LOSSES = (0.0, 0.01, 0.1, 0.3, 0.6, 0.9)
TOLERANCES = (0.0, 0.008, 0.408)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One transfer, repeated on one kind of link.

    Attributes:
        name: unique; its parts are separated by slashes.
        link: where.
        peer: `ours`, `gloo`, or `tcp-` and the kernel's name of a congestion control.
        payload_bytes: of each sender's transfer.
        tolerance, repair, congestion_control, checksum, chunk_bytes: of ours; without meaning for
            others.
        repeats: measured transfers.
        warm_ups: transfers before, which fault memory in and teach congestion controls.
        limit_s: the case is stopped and recorded as such after this time.
    """

    name: str
    link: LinkKind
    peer: str = OURS
    payload_bytes: int = 1_000_000
    tolerance: float = 0.0
    repair: str = "passes"
    congestion_control: str = "fixed"
    checksum: bool = False
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    repeats: int = 3
    warm_ups: int = 1
    limit_s: float = 20.0


def _percent(share: float) -> str:
    return f"{share * 100:g}%"


@dataclass(frozen=True)
class _Axes:
    repairs: tuple[str, ...]
    controls: tuple[str, ...]
    quick: bool


def select(pattern: str = "*", *, quick: bool = False) -> list[Case]:
    """The cases whose name matches a shell pattern, ordered by link so that each is made once."""
    from testbed.transport import CONGESTION_CONTROLS, REPAIRS

    # DCTCP needs marks of the path, which no link here makes.
    controls = tuple(name for name in CONGESTION_CONTROLS if name != "dctcp")
    axes = _Axes(repairs=tuple(REPAIRS), controls=controls, quick=quick)
    parts = (_by_loss(axes), _by_rtt(axes), _incast(axes), _unshaped(axes))
    wanted = [case for part in parts for case in part if fnmatch.fnmatchcase(case.name, pattern)]
    order = list(dict.fromkeys(case.link for case in wanted))
    return sorted(wanted, key=lambda case: order.index(case.link))


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
            base = replace(base, repeats=2, warm_ups=0, limit_s=4)
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
            hopeless = {"repeats": 1, "warm_ups": 0, "limit_s": 6} if loss > 0.1 else {}
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
                base = replace(base, repeats=2, warm_ups=0, limit_s=4)
            short = int(2 * rtt_s * _100M / 8 * 0.95)
            for repair in axes.repairs:
                yield replace(base, name=f"{base.name}/{repair}", repair=repair)
                if loss >= 0.6 and rtt_s >= 0.01:
                    yield replace(
                        base,
                        name=f"{base.name}/short/{repair}",
                        repair=repair,
                        payload_bytes=short,
                        repeats=base.repeats + 2,
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
                chunk_bytes=DEFAULT_CHUNK_BYTES - 4,
            )
