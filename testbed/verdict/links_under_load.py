"""Judges what links did while the run trained, from the samples of their queues."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES, LinkShape
from testbed.shared import jsonl, run_directory
from testbed.verdict.gates import Finding, worst
from testbed.verdict.link_changes import LinkChanges

# A queue may run empty between two samples that found packets. So only intervals are judged whose
# first sample found at least what the link sends until the second; to choose them by what left in
# them would prefer some rates.
FILE = "links_under_load.json"
# Less is not judged: a stall of the shaper or the sampler of some milliseconds would decide.
LEAST_S = 0.25
WINDOW_S = 0.5
_SAMPLER = "samples/sampler.json"
_LONGEST_GAP_S = 2.0  # up to 0.89 s in runs that counted, on a machine that others used

Floats = NDArray[np.float64]
Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class LinkUnderLoad:
    """One direction of a link.

    Attributes:
        link, sender: the direction.
        rate_bps: the configured rate, in bit/s of Ethernet frames.
        samples: how often its queue was sampled.
        backlogged: how many samples found packets waiting.
        packet_bytes: the largest mean size but one of the packets that a sample found waiting,
            since a queue's counters are not read at one instant. None: no sample found any.
        holds_enough: whether its queue can hold what the link sends between two samples; otherwise
            nothing shows that packets waited all the time.
        loaded_s: the time in which packets surely waited at a known rate: the configured one, or
            one that a trace or the lab's user had set.
        left_out_s: the time in which packets waited while an impairment may have changed the rate.
        delivered: bytes sent in `loaded_s` over those that the rate allows; None: it was too short.
        worst: the same, of the window of half a second that is farthest from 1.
        missing: the most that did not leave in the loaded intervals of half a second, over what the
            rate allows in it; one frame for each stretch of them proves nothing.
        most: the most that left in a quarter of a second, beyond the shaper's bucket, over what the
            rate allows, loaded or not; None: it was never sampled for so long.
    """

    link: str
    sender: str
    rate_bps: int
    samples: int
    backlogged: int
    packet_bytes: float | None
    holds_enough: bool
    loaded_s: float
    left_out_s: float
    delivered: float | None
    worst: float | None
    missing: float
    most: float | None

    @property
    def error(self) -> float:
        """The distance of its rate from the configured one, as a share; 0 where nothing tells."""
        shares = [abs(share - 1) for share in (self.delivered, self.worst) if share is not None]
        return worst((error, "") for error in (*shares, self.missing, (self.most or 0.0) - 1))[0]

    @property
    def place(self) -> str:
        return f"{self.link} from {self.sender}"


@dataclass(frozen=True, kw_only=True)
class LinksUnderLoad:
    """All directions; `failure` says why there is none."""

    links: Sequence[LinkUnderLoad]
    failure: str = ""

    def store(self, directory: Path) -> None:
        document = {"schema": run_directory.SCHEMA, "failure": self.failure}
        links = [asdict(link) | {"error": link.error} for link in self.links]
        run_directory.write_json(directory / FILE, document | {"links": links})


def measure(
    directory: Path, events: Sequence[Mapping[str, Any]], by_hand: LinkChanges
) -> LinksUnderLoad:
    import polars as pl

    samples = directory / "samples"
    columns = ("t_s", "sent_bytes", "backlog_bytes", "backlog_packets")
    links = []
    try:
        replayed = _recorded_rates(directory)
        directions = run_directory.read_json(samples / "sampler.json")["directed_links"]
        queues = pl.read_parquet(samples / "queues.parquet").partition_by(
            "link", "from", as_dict=True
        )
        nodes: dict[str, set[str]] = {}
        for facts in directions:
            nodes.setdefault(facts["link"], set()).add(facts["from"])
        for facts in directions:
            link, sender = way = facts["link"], facts["from"]
            rows = queues.get(way, pl.DataFrame(schema=columns))
            counters = [rows[name].to_numpy().astype(np.float64) for name in columns]
            (receiver,) = nodes[link] - {sender}
            was_set = by_hand.rates(way)
            rates = [(done_s, rate_bps) for _, done_s, rate_bps in was_set]
            links.append(
                of_link(
                    link,
                    sender,
                    *counters,
                    rate_bps=facts["rate_bps"],
                    queue_bytes=facts["queue_bytes"],
                    changed=[
                        *spans_of_changes(events, nodes[link]),
                        *((sent_s, done_s) for sent_s, done_s, _ in was_set),
                    ],
                    replayed=sorted([*replayed.get(f"{sender}->{receiver}", ()), *rates]),
                )
            )
    except (OSError, ValueError, KeyError, pl.exceptions.PolarsError) as error:
        return LinksUnderLoad(links=[], failure=f"no samples of queues: {error}")
    return LinksUnderLoad(links=links)


def _recorded_rates(directory: Path) -> dict[str, list[tuple[float, float]]]:
    """Read the times and rates that traces set, by direction `a->b`."""
    rates: dict[str, list[tuple[float, float]]] = {}
    for change in jsonl.read(directory / "events" / "traces.jsonl"):
        rates.setdefault(change["link"], []).append((change["made_s"], change["rate_bps"]))
    return rates


def spans_of_changes(
    events: Sequence[Mapping[str, Any]],
    nodes: set[str],
    unchanged: Container[str] = ("no", "recorded"),
) -> list[tuple[float, float]]:
    """List the spans in which an impairment may have changed the rate between two nodes."""
    spans: list[tuple[float, float]] = []
    began: dict[str, float] = {}
    for event in events:
        changes, name = event.get("changes_rates", "anywhere"), str(event.get("name"))
        hit = set(str(event.get("target")).split("->"))
        if changes in unchanged or (changes in ("target", "recorded") and not hit <= nodes):
            continue
        if event.get("action") == "begin":
            # The change happens between the order and its acknowledgement.
            began[name] = event.get("sent_s") or event.get("planned_s") or 0.0
        elif event.get("action") == "end" and name in began:
            spans.append((began.pop(name), event.get("acknowledged_s") or math.inf))
    return [*spans, *((began_s, math.inf) for began_s in began.values())]


def of_link(
    link: str,
    sender: str,
    t_s: Floats,
    sent_bytes: Floats,
    backlog_bytes: Floats,
    backlog_packets: Floats,
    *,
    rate_bps: int,
    queue_bytes: int,
    changed: Spans = (),
    replayed: Spans = (),
) -> LinkUnderLoad:
    """Judge one direction by the samples of its queue, in the order of their times."""
    per_s = rate_bps / 8
    highest_bps = int(max([rate_bps, *(set_bps for _, set_bps in replayed)]))
    bucket = LinkShape(rate_bps=highest_bps, queue_bytes=0).burst_bytes
    spans_s, sent = np.diff(t_s), np.diff(sent_bytes)
    due = _due(t_s, rate_bps, replayed)
    # A low rate sends whole frames, too: one more or less proves nothing.
    odd = ETHERNET_FRAME_BYTES if replayed else 0
    kept = np.ones(len(spans_s), dtype=np.bool_)
    for began_s, ended_s in changed:
        kept &= (t_s[1:] < began_s) | (t_s[:-1] > ended_s)
    waiting = backlog_bytes[:-1] > 0
    loaded = kept & (backlog_bytes[:-1] >= due)
    before_bps: float = rate_bps
    for at_s, changed_bps in replayed:
        # The frame that left last still takes the time that it takes at the lower rate.
        until_s = at_s + 8 * ETHERNET_FRAME_BYTES / before_bps
        if changed_bps > before_bps:
            loaded &= (t_s[1:] < at_s) | (t_s[:-1] > until_s)
        before_bps = changed_bps
    delivered = farthest_off = None
    loaded_s = float(spans_s[loaded].sum())
    if loaded_s >= LEAST_S:
        delivered = float(_share(sent[loaded].sum(), due[loaded].sum(), odd))
        window_s = min(WINDOW_S, loaded_s)
        left, allowed = _windows(window_s, spans_s[loaded], sent[loaded], due[loaded])
        shares = _share(left, allowed, odd)
        farthest_off = float(shares[np.abs(shares - 1).argmax()])
    return LinkUnderLoad(
        link=link,
        sender=sender,
        rate_bps=rate_bps,
        samples=len(t_s),
        backlogged=int(np.count_nonzero(backlog_bytes)),
        packet_bytes=_packet_bytes(backlog_bytes, backlog_packets),
        holds_enough=len(t_s) < 2 or queue_bytes >= per_s * float(np.median(spans_s)),
        loaded_s=loaded_s,
        left_out_s=float(spans_s[waiting & ~kept].sum()),
        delivered=delivered,
        worst=farthest_off,
        missing=_missing(spans_s, sent, due, loaded),
        most=_most(spans_s, sent, due, kept, bucket + odd),
    )


def _due(t_s: Floats, rate_bps: int, replayed: Spans) -> Floats:
    """Compute the bytes that the rate in force allows between each two samples."""
    if not replayed or not len(t_s):
        return np.diff(t_s) * (rate_bps / 8)
    at_s, rates_bps = np.array(replayed).T
    first_s, last_s = min(t_s[0], at_s[0]) - 1, max(t_s[-1], at_s[-1]) + 1
    knots_s = np.concatenate([[first_s], at_s, [last_s]])
    held = np.diff(knots_s) * np.concatenate([[rate_bps], rates_bps]) / 8
    return np.diff(np.interp(t_s, knots_s, _sums(held)))


def _sums(values: Floats) -> Floats:
    """Sum none, the first, the first two of the values, and so on."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _share(sent: Floats, due: Floats, odd: int) -> Floats:
    """Divide bytes sent by those due, as if up to `odd` more or fewer were none."""
    off = sent - due
    share: Floats = 1 + np.sign(off) * np.maximum(0, np.abs(off) - odd) / due
    return share


def _windows(
    least_s: float, spans_s: Floats, first: Floats, second: Floats
) -> tuple[Floats, Floats]:
    """Sum two columns in each window of at least so long."""
    at_s, first, second = map(_sums, (spans_s, first, second))
    ends = np.searchsorted(at_s, at_s + least_s - 1e-9)
    begins = np.flatnonzero(ends < len(at_s))
    ends = ends[begins]
    return first[ends] - first[begins], second[ends] - second[begins]


def _missing(spans_s: Floats, sent: Floats, due: Floats, loaded: NDArray[np.bool_]) -> float:
    """Find the most that was due in loaded intervals and did not leave, by what a window allows."""
    begins = loaded & ~np.concatenate([[False], loaded[:-1]])[: len(loaded)]
    short = np.where(loaded, due - sent, 0.0) - ETHERNET_FRAME_BYTES * begins
    short, allowed = _windows(WINDOW_S, spans_s, short, due)
    shares = short[allowed > 0] / allowed[allowed > 0]
    return float(shares.max(initial=0.0))


def _most(
    spans_s: Floats, sent: Floats, due: Floats, kept: NDArray[np.bool_], bucket: int
) -> float | None:
    """Find the most that left in a quarter of a second, by what the rate allows."""
    most = []
    borders = np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]]).astype(np.int8)))
    for first, last in zip(borders[::2], borders[1::2], strict=True):
        stretch = slice(first, last)
        left, allowed = _windows(LEAST_S, spans_s[stretch], sent[stretch], due[stretch])
        if len(left):
            most.append(((left - bucket) / allowed).max())
    return float(np.max(most)) if most else None


def _packet_bytes(backlog_bytes: Floats, packets: Floats) -> float | None:
    # One packet may come between the reads of a queue's counters, and excuses a frame too many.
    waiting = backlog_bytes > 0
    if not waiting.any():
        return None
    held, count = backlog_bytes[waiting], np.maximum(packets[waiting], 1.0)
    frame = ETHERNET_FRAME_BYTES
    without_last = np.maximum(np.minimum(held, frame), (held - frame) / count)
    means = np.where(held <= frame * count, held / count, without_last)
    return float(np.sort(means)[-2:][0])


def packet_sizes(load: LinksUnderLoad) -> Finding:
    samples = sum(link.samples for link in load.links)
    if load.failure or not samples:
        return Finding(missing=load.failure or "no queue was sampled")
    waited = [
        (link.packet_bytes, link.place) for link in load.links if link.packet_bytes is not None
    ]
    if not waited:
        return Finding(note=f"none of {samples} samples found a packet waiting")
    size, place = worst(waited)
    backlogged = sum(link.backlogged for link in load.links)
    note = f"{backlogged} of {samples} samples found packets waiting"
    return Finding(value=size, where=place, note=note)


def rates(load: LinksUnderLoad, limits: Mapping[str, Any]) -> Finding:
    if load.failure or not any(link.samples for link in load.links):
        return Finding(missing=load.failure or "no queue was sampled")
    judged = [link for link in load.links if link.delivered is not None]
    left_out_s = sum(link.left_out_s for link in load.links)
    note = (
        f"{len(judged)} of {len(load.links)} directed links were loaded for {LEAST_S:g} s or more"
    )
    if small := [link.place for link in load.links if not link.holds_enough]:
        more = f" and {len(small) - 3} more" if small[3:] else ""
        note += f"; queues that cannot hold what leaves between two samples: {', '.join(small[:3])}"
        note += more
    if left_out_s:
        note += f"; {left_out_s:.1f} s left out, in which impairments may have changed rates"
    error, place = worst((link.error, link.place) for link in load.links)
    if not judged and error <= limits["rate_under_load"]:
        return Finding(note=note)
    return Finding(value=error, where=place, note=note)


def missing_samples(directory: Path) -> Finding:
    facts = run_directory.read_or_empty(directory / _SAMPLER)
    if not facts:
        why = f"{_SAMPLER} is missing: the sampler died; logs/sampler.log may say why"
        return Finding(missing=why)
    taken, lost = facts["ticks"], facts["samples_lost"]
    unanswered = facts["answers_left_out"] + facts["answers_too_late"]
    shares = [
        (lost / max(1, taken + lost), "the sampler was late"),
        (unanswered / max(1, taken), "the kernel's answers were late or lacked a queue"),
    ]
    for name, part in facts["parts"].items():
        if name != "live" and part["errors"]:  # no gate reads what is for who watches
            shares.append((part["errors"] / max(1, taken), f"{name}: {part['last_error']}"))
    value, where = worst(shares)
    # A longer time without a sample hides too much, however long the run is.
    problems = list(facts["problems"])
    if (gap_s := facts["largest_gap_s"]) > _LONGEST_GAP_S:
        problems.append(f"no sample for {gap_s:.1f} s")
    return Finding(
        value=value,
        where=where if value else "",
        note=f"the longest time without a sample was {gap_s:.3f} s",
        missing="; ".join(problems),
    )
