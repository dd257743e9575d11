"""Predicts runs: numbers that do not depend on a machine's speed, and how long they take.

Times are those of a network without loss in the phase that is not critical, both legs one after the
other, and computing of a real pace is not counted.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import topologies
from testbed.experiment import Run
from testbed.lab import paths
from testbed.shared.input_error import InputError
from testbed.training import models
from testbed.transport import Leg, PayloadLayout, wire
from testbed.transport.chunk_energy import Selection

_LAB_S = 3.8  # to build a lab, calibrate and leave it: 3.6 to 4.1 s were measured on two cores


class Numbers(NamedTuple):
    """Characteristics of a run; None stands for what the configuration does not determine."""

    chunks: int  # of one transfer, without what `keep` leaves out
    rtt_over_transfer: float
    queue_over_bdp: float | None
    communication_share: float | None  # of an iteration whose computing time is given
    passes: int | None  # until the strongest random loss leaves no more than is tolerated
    round_bytes: int  # frames of data in both legs of all workers


class _Way(NamedTuple):
    """The path between the server and the worker with the smallest share."""

    share_bps: float  # of Ethernet frames
    rate_bps: int  # of the narrowest link
    queue_bytes: int
    rtt_s: float  # of the farthest hosts, without queues and processing


@functools.cache  # of thousands of workers it takes a while
def _way(document: str) -> _Way:
    parameters = topologies.parse(json.loads(document))
    network = topologies.build(parameters)
    options = network.link_options()
    links = [
        {"name": name, "first": {"node": first}, "second": {"node": second}} | options[name]
        for name in options
        for first, second in [name.split("--")]
    ]
    whole: dict[str, Any] = {"hosts": parameters.host_names(), "links": links}
    shares_bps = paths.fair_shares(whole, parameters.worker_names(), "rate_bps")
    slowest = min(shares_bps, key=lambda name: shares_bps[name])
    on_way = [options[link.name] for link in paths.path(whole, slowest, paths.SERVER)]
    link = min(on_way, key=lambda link: link["rate_bps"])
    return _Way(shares_bps[slowest], link["rate_bps"], link["queue_bytes"], network.longest_rtt_s())


class Prediction:
    def __init__(self, run: Run) -> None:
        self._run, self._experiment = run, run.experiment
        self.layout = _layout(run)
        self._way = _way(self._experiment.topology.model_dump_json())
        self._chunks = Selection(run.protocol.keep).count(self.layout)
        self._sent_bytes = wire.wire_bytes(self._chunks, self.layout.chunk_bytes)
        self._workers, self._rounds = self._experiment.topology.workers, self._experiment.rounds
        pace = self._experiment.training.pace
        chosen_s = self._experiment.simulation.compute_s if run.simulated else 0.0
        self._compute_s = float(getattr(pace, "compute_s", chosen_s))
        self.is_measured = pace.kind == "real" and not chosen_s  # how long it computes

    @property
    def numbers(self) -> Numbers:
        way, both_s = self._way, self.communication_s
        bdp_bytes = way.rate_bps * way.rtt_s / 8
        passes, q = None, max((q for q, _ in self._bursts()), default=0.0)
        if 0 < q < 1 and self._run.protocol.carrier == "udp":
            # ln P / ln q; without tolerance, until none is missing
            missing = max(self._tolerance(Leg.GATHER), 1 / self._chunks)
            passes = math.ceil(math.log(missing) / math.log(q))
        return Numbers(
            chunks=self._chunks,
            rtt_over_transfer=way.rtt_s * way.share_bps / (8 * self._sent_bytes),
            queue_over_bdp=way.queue_bytes / bdp_bytes if bdp_bytes else None,
            communication_share=None if self.is_measured else both_s / (both_s + self._compute_s),
            passes=passes,
            round_bytes=round(sum(map(self._needed_bytes, Leg))) * self._workers,
        )

    @property
    def communication_s(self) -> float:
        sending_bps = self._way.share_bps * min(1.0, self._experiment.transport.pace)
        return sum(self._needed_bytes(leg) * 8 / sending_bps + self._way.rtt_s for leg in Leg)

    @property
    def training_s(self) -> float:
        """The time of all rounds, and of what bursts of loss have sent again."""
        leg_s = self._needed_bytes(Leg.GATHER) * 8 / self._way.share_bps
        again_s = sum(
            min(longest_s, leg_s * q / (1 - q) if q < 1 else math.inf)
            for q, longest_s in self._bursts()
        )
        return self._rounds * (self._compute_s + self.communication_s) + again_s

    def _needed_bytes(self, leg: Leg) -> float:
        return (1 - self._tolerance(leg)) * self._sent_bytes

    def _tolerance(self, leg: Leg) -> float:
        return self._run.protocol.policy(leg).tolerance(critical=False)

    def _bursts(self) -> Iterator[tuple[float, float]]:
        """Yield the share of every burst of random loss, and how much longer it may make a leg."""
        for impairment in self._experiment.resolved_impairments(self._run.seed):
            if impairment["kind"] not in ("loss", "sender-drop") or not impairment.get("q"):
                continue
            longest_s = float(
                impairment.get("duration_s") or impairment.get("at_most_s") or math.inf
            )
            if impairment["kind"] == "sender-drop":
                longest_s = 0.0  # what never left takes no time
            yield from [(float(impairment["q"]), longest_s)] * len(impairment.get("rounds") or ())


_layouts: dict[str, PayloadLayout] = {}


def _layout(run: Run) -> PayloadLayout:
    """Lay out one transfer, without loading data where their shape is known beforehand."""
    training, chunk_bytes = run.experiment.training, run.experiment.transport.chunk_bytes
    codec = run.protocol.codec
    key = f"{training.model_dump_json()} {chunk_bytes} {codec} {run.folder}"
    if key in _layouts:
        return _layouts[key]
    entry, dataset = models.MODELS.get(training.model), training.dataset
    if training.pace.kind == "payload-only" and entry is not None and entry.published:
        classes, shape = entry.published
    elif (known := dataset.shape()) is not None:
        classes, shape = known
    else:
        loaded = dataset.load(run.folder)
        classes, shape = loaded.classes, loaded.input_shape
    layers = models.layer_map(training.model, classes=classes, input_shape=shape)
    sizes_of = models.layer_sizes(models.scaled(layers, getattr(training.pace, "scale", 1.0)))
    try:
        return _layouts.setdefault(key, PayloadLayout(sizes_of, chunk_bytes, codec))
    except ValueError as error:
        raise InputError(f"{run.source}: transport.chunk_bytes: {error}") from None


def wall_s(run: Run) -> float | None:
    """Predict a whole run; None where nobody can tell: in virtual time, programs without limits."""
    if run.simulated:
        return None
    if run.experiment.trains:
        return _LAB_S + Prediction(run).training_s
    limits_s = [program.time_limit_s for program in run.programs.programs if not program.service]
    known_s = [limit_s for limit_s in limits_s if limit_s is not None]
    return _LAB_S + max(known_s) if len(known_s) == len(limits_s) else None


def total(runs: Sequence[Run]) -> str:
    """Say in one sentence how long all of them take, one after another."""
    predicted_s = [run_s for run in runs if (run_s := wall_s(run)) is not None]
    words = f"{len(runs)} run{'s' * (len(runs) > 1)} to do"
    if not predicted_s:
        return f"{words}; how long is unknown"
    some = f" for {len(predicted_s)} of them" if len(predicted_s) < len(runs) else ""
    about = f"{words}, about {in_words(sum(predicted_s))}{some}"
    computes = any(r.experiment.trains and r.experiment.training.pace.kind == "real" for r in runs)
    return f"{about} (computing not counted)" if computes else about


def in_words(duration_s: float) -> str:
    """Write a duration with the two digits that an estimate deserves."""
    if duration_s < 90:
        return f"{duration_s:.0f} s"
    return f"{duration_s / 60:.0f} min" if duration_s < 7200 else f"{duration_s / 3600:.3g} h"
