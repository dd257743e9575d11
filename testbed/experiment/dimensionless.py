"""Computes the numbers of a run that do not depend on the speed of its machine and links.

Results of a small testbed hold for a large one as far as these agree. Times are those of a network
without loss in the phase that is not critical, both legs one after the other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import topologies
from testbed.experiment import Run
from testbed.lab import paths
from testbed.shared.input_error import InputError
from testbed.training import datasets, models, pace
from testbed.transport import Leg, PayloadLayout
from testbed.transport.core import wire
from testbed.transport.net.tcp import compression_of
from testbed.transport.policies.congestion import CONGESTION_CONTROLS
from testbed.transport.policies.repair import REPAIRS, Passes
from testbed.transport.protocols import NEED_RATE

LAB_S = 3.8  # to build a lab, calibrate and leave it: 3.6 to 4.1 s were measured on two cores
_TENTH = 0.1
_INPUTS: dict[str, tuple[int, tuple[int, ...]]] = {
    "digits": (models.DIGITS_CLASSES, models.DIGITS_SHAPE),
    "cifar10": (10, (3, 32, 32)),
}


@dataclass(frozen=True, kw_only=True)
class Way:
    """The path between the workers and the server: its narrowest link, and its longest."""

    share_bps: float  # the smallest fair share of a worker, of Ethernet frames
    rate_bps: int
    queue_bytes: int
    rtt_s: float  # without queues and processing


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Of one run; None stands for what the configuration does not determine."""

    chunks: int  # of one transfer
    rtt_over_transfer: float
    queue_over_bdp: float | None
    communication_share: float | None  # of an iteration whose computing time is given
    passes: int | None  # until the strongest random loss leaves no more than is tolerated
    round_bytes: int  # frames of data in both legs of all workers


_ways: dict[str, Way] = {}


def way_of(parameters: topologies.TopologyParameters) -> Way:
    """The narrowest and longest of a topology's ways between workers and server."""
    text = parameters.model_dump_json()
    if text in _ways:  # of thousands of workers it takes a while
        return _ways[text]
    options = topologies.build(parameters).link_options()
    links = [
        {"name": name, "first": {"node": first}, "second": {"node": second}}
        | {key: options[name][key] for key in ("rate_bps", "delay_s", "queue_bytes")}
        for name in options
        for first, second in [name.split("--")]
    ]
    network: dict[str, Any] = {"hosts": parameters.host_names(), "links": links}
    workers = parameters.worker_names()
    shares_bps = paths.fair_shares_bps(network, workers)
    slowest = min(workers, key=lambda name: shares_bps[name])
    on_way = [options[link.name] for link in paths.path(network, slowest, paths.SERVER)]
    narrowest = min(on_way, key=lambda link: link["rate_bps"])
    _ways[text] = Way(
        share_bps=shares_bps[slowest],
        rate_bps=narrowest["rate_bps"],
        queue_bytes=narrowest["queue_bytes"],
        rtt_s=max(paths.path_rtt_s(network, name, paths.SERVER) for name in workers),
    )
    return _ways[text]


def layout_of(run: Run) -> PayloadLayout:
    """The payload of one transfer, without loading data where its shape is known beforehand."""
    training = run.experiment.training
    entry, dataset = models.MODELS.get(training.model), training.dataset
    if training.pace.kind == "payload-only" and entry is not None and entry.published:
        classes, shape = entry.published
    elif str(dataset.name) in _INPUTS:
        classes, shape = _INPUTS[str(dataset.name)]
    elif isinstance(dataset, datasets.glyphs.Parameters):
        classes, shape = len(dataset.characters), (1, dataset.side, dataset.side)
    else:
        loaded = dataset.load(run.folder)
        classes, shape = loaded.classes, loaded.input_shape
    layers = models.layer_map(training.model, classes=classes, input_shape=shape, kept=True)
    scaled = pace.scaled(layers, getattr(training.pace, "scale", 1.0))
    try:
        return PayloadLayout(models.layer_sizes(scaled), run.experiment.transport.chunk_bytes)
    except ValueError as error:
        raise InputError(f"{run.source}: transport.chunk_bytes: {error}") from None


def numbers(run: Run, layout: PayloadLayout) -> Numbers:
    """The dimensionless numbers of a run whose transfers have this layout."""
    way, section = way_of(run.experiment.topology), run.experiment.training.pace
    bdp_bytes = way.rate_bps * way.rtt_s / 8
    share = None
    if section.kind != "real":
        both_s = communication_s(run, layout)
        share = both_s / (both_s + section.compute_s)
    round_bytes = sum(_needed_bytes(run, layout, leg) for leg in Leg)
    return Numbers(
        chunks=layout.chunk_count,
        rtt_over_transfer=way.rtt_s * way.share_bps / (8 * _whole_bytes(run, layout)),
        queue_over_bdp=way.queue_bytes / bdp_bytes if bdp_bytes else None,
        communication_share=share,
        passes=_passes(run, layout),
        round_bytes=round(round_bytes) * run.experiment.topology.workers,
    )


def communication_s(run: Run, layout: PayloadLayout) -> float:
    """How long the two legs of a calm round take: predicted."""
    way = way_of(run.experiment.topology)
    sending_bps = min(way.share_bps * min(1.0, run.experiment.transport.pace), _fixed_bps(run))
    return sum(
        _needed_bytes(run, layout, leg) * 8 / sending_bps
        + way.rtt_s
        + _walk_s(run, layout, share=1 - _tolerance(run, leg))
        for leg in Leg
    )


def run_s(run: Run, layout: PayloadLayout) -> float:
    """How long a run takes without its machine's computing: predicted, with bursts of loss."""
    experiment = run.experiment
    compute_s = getattr(experiment.training.pace, "compute_s", 0.0)
    calm_s = experiment.rounds * (compute_s + communication_s(run, layout))
    return LAB_S + calm_s + _bursts_s(run, layout)


def compared(ours: Sequence[Numbers], theirs: Sequence[Numbers]) -> dict[str, tuple[str, str, str]]:
    """Compare the same arms and points of two profiles: number -> (ours, theirs, what is kept)."""
    columns = {}
    for name in (field.name for field in dataclasses.fields(Numbers)):
        one, other = [[getattr(numbers, name) for numbers in side] for side in (ours, theirs)]
        columns[name] = (_span(one), _span(other), _kept(one, other))
    return columns


def _kept(ours: Sequence[float | None], theirs: Sequence[float | None]) -> str:
    pairs = zip(ours, theirs, strict=True)
    known = [(one, other) for one, other in pairs if one is not None and other is not None]
    if not known:
        return "unknown"
    if all(abs(one - other) <= _TENTH * abs(other) for one, other in known):
        return "kept"
    ratios = [one / other for one, other in known if one and other]
    if len(ratios) < len(known):
        return "differs: one of them is 0"
    return f"scaled by {_span(ratios)}"


def _span(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    low, high = f"{min(known):.3g}", f"{max(known):.3g}"
    return low if low == high else f"{low} to {high}"


def _whole_bytes(run: Run, layout: PayloadLayout) -> float:
    return wire.wire_bytes(layout.chunk_count, run.experiment.transport.chunk_bytes)


def _needed_bytes(run: Run, layout: PayloadLayout, leg: Leg) -> float:
    """The bytes of frames that one transfer of a calm round sends."""
    compression, sent = compression_of(run.protocol), 1.0
    if compression is not None:
        sent = compression.size(layout) / (layout.chunk_count * layout.chunk_bytes)
    return (sent - _tolerance(run, leg)) * _whole_bytes(run, layout)


def _tolerance(run: Run, leg: Leg) -> float:
    return run.protocol.policy(leg).tolerance(critical=False)


def _losses(run: Run) -> list[Mapping[str, Any]]:
    impairments = run.experiment.resolved_impairments(run.seed)
    return [
        each for each in impairments if each["kind"] in ("loss", "sender-drop") and each.get("q")
    ]


def _passes(run: Run, layout: PayloadLayout) -> int | None:
    """ln P / ln q; without tolerance, until none is missing."""
    q = max((float(each["q"]) for each in _losses(run)), default=0.0)
    if not 0 < q < 1 or run.protocol.carrier != "udp":
        return None
    missing = max(_tolerance(run, Leg.GATHER), 1 / layout.chunk_count)
    return math.ceil(math.log(missing) / math.log(q))


def _fixed_bps(run: Run) -> float:
    """The rate that an arm's own `fixed` gives; math.inf where the link decides."""
    if run.protocol.carrier != "udp":
        return math.inf
    name, options = CONGESTION_CONTROLS.parse(run.protocol.congestion_control)
    return float(options.get("rate_bps", math.inf)) if name in NEED_RATE else math.inf


def _walk_s(run: Run, layout: PayloadLayout, *, share: float = 1.0) -> float:
    """What a pass costs beside its datagrams, up to this share of the chunks."""
    if run.protocol.carrier != "udp":
        return 0.0
    repair = REPAIRS.create(run.protocol.repair)
    walk_s = repair.walk_s(layout.chunk_count) if isinstance(repair, Passes) else None
    return 0.0 if walk_s is None else float(walk_s[math.ceil(share * layout.chunk_count)])


def _bursts_s(run: Run, layout: PayloadLayout) -> float:
    """What bursts of loss add: the bytes that they cost, up to their longest time."""
    way, total_s = way_of(run.experiment.topology), 0.0
    leg_s = _needed_bytes(run, layout, Leg.GATHER) * 8 / way.share_bps
    passes = _passes(run, layout) or 1  # the calm round has the first one's walk
    walks_s = passes * way.rtt_s + (passes - 1) * _walk_s(run, layout)
    for each in _losses(run):
        q = float(each["q"])
        longer_s = leg_s * q / (1 - q) if q < 1 else math.inf
        if each["kind"] == "sender-drop" and q < 1:
            longer_s = 0.0  # what never left takes no time
        longest_s = float(each.get("duration_s") or each.get("at_most_s") or math.inf)
        total_s += len(each.get("rounds") or ()) * min(longer_s + walks_s, longest_s)
    return total_s
