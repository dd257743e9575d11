"""Predicts runs: numbers that do not depend on a machine's speed, and how long they take.

Times are those of a network without loss in the phase that is not critical, both legs one after the
other, and computing is not counted. Finished runs that differ in the seed alone replace them.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import topologies
from testbed.experiment import Run
from testbed.lab import paths
from testbed.shared import run_directory
from testbed.shared.input_error import InputError
from testbed.training import datasets, models
from testbed.transport import Leg, PayloadLayout, wire
from testbed.transport.net.tcp import compression_of

_LAB_S = 3.8  # to build a lab, calibrate and leave it: 3.6 to 4.1 s were measured on two cores
_INPUTS: dict[str, tuple[int, tuple[int, ...]]] = {
    "digits": (models.DIGITS_CLASSES, models.DIGITS_SHAPE),
    "cifar10": (10, (3, 32, 32)),
}


class Numbers(NamedTuple):
    """Characteristics of a run; None stands for what the configuration does not determine."""

    chunks: int  # of one transfer
    rtt_over_transfer: float
    queue_over_bdp: float | None
    communication_share: float | None  # of an iteration whose computing time is given
    passes: int | None  # until the strongest random loss leaves no more than is tolerated
    round_bytes: int  # frames of data in both legs of all workers


@dataclass(frozen=True, kw_only=True)
class Duration:
    """The time of one run: the mean of `earlier` runs, or a prediction where that is 0."""

    run_s: float | None  # None where nobody can tell: programs without limits, virtual time
    earlier: int = 0
    computing: bool = True  # whether the time for it is in it


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
    shares_bps = paths.fair_shares_bps(whole, parameters.worker_names())
    slowest = min(shares_bps, key=lambda name: shares_bps[name])
    on_way = [options[link.name] for link in paths.path(whole, slowest, paths.SERVER)]
    link = min(on_way, key=lambda link: link["rate_bps"])
    return _Way(shares_bps[slowest], link["rate_bps"], link["queue_bytes"], network.longest_rtt_s())


class Prediction:
    """Computes what follows from a run's configuration."""

    def __init__(self, run: Run) -> None:
        self._run, self._experiment = run, run.experiment
        self.layout = _layout(run)
        self._way = _way(self._experiment.topology.model_dump_json())
        self._whole_bytes = wire.wire_bytes(self.layout.chunk_count, self.layout.chunk_bytes)
        self._workers, self._rounds = self._experiment.topology.workers, self._experiment.rounds
        self._compute_s = float(getattr(self._experiment.training.pace, "compute_s", 0.0))

    @property
    def numbers(self) -> Numbers:
        way, is_real = self._way, self._experiment.training.pace.kind == "real"
        bdp_bytes, both_s = way.rate_bps * way.rtt_s / 8, self.communication_s
        passes, q = None, max((q for q, _ in self._bursts()), default=0.0)
        if 0 < q < 1 and self._run.protocol.carrier == "udp":
            # ln P / ln q; without tolerance, until none is missing
            missing = max(self._tolerance(Leg.GATHER), 1 / self.layout.chunk_count)
            passes = math.ceil(math.log(missing) / math.log(q))
        return Numbers(
            chunks=self.layout.chunk_count,
            rtt_over_transfer=way.rtt_s * way.share_bps / (8 * self._whole_bytes),
            queue_over_bdp=way.queue_bytes / bdp_bytes if bdp_bytes else None,
            communication_share=None if is_real else both_s / (both_s + self._compute_s),
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

    def duration(self) -> Duration:
        run_s = None if self._run.simulated else _LAB_S + self.training_s
        return Duration(run_s=run_s, computing=self._experiment.training.pace.kind != "real")

    def _needed_bytes(self, leg: Leg) -> float:
        compression, sent = compression_of(self._run.protocol), 1.0
        if compression is not None:
            whole_bytes = self.layout.chunk_count * self.layout.chunk_bytes
            sent = compression.size(self.layout) / whole_bytes
        return (sent - self._tolerance(leg)) * self._whole_bytes

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
    key = f"{training.model_dump_json()} {chunk_bytes} {run.folder}"
    if key in _layouts:
        return _layouts[key]
    entry, dataset = models.MODELS.get(training.model), training.dataset
    if training.pace.kind == "payload-only" and entry is not None and entry.published:
        classes, shape = entry.published
    elif str(dataset.name) in _INPUTS:
        classes, shape = _INPUTS[str(dataset.name)]
    elif isinstance(dataset, datasets.Glyphs):
        classes, shape = len(dataset.characters), (1, dataset.side, dataset.side)
    else:
        loaded = dataset.load(run.folder)
        classes, shape = loaded.classes, loaded.input_shape
    layers = models.layer_map(training.model, classes=classes, input_shape=shape)
    sizes_of = models.layer_sizes(models.scaled(layers, getattr(training.pace, "scale", 1.0)))
    try:
        return _layouts.setdefault(key, PayloadLayout(sizes_of, chunk_bytes))
    except ValueError as error:
        raise InputError(f"{run.source}: transport.chunk_bytes: {error}") from None


def of_runs(results: Path, runs: Sequence[Run]) -> list[Duration]:
    """Estimate each run; earlier ones below `results` count that differ in the seed alone."""
    earlier = _earlier(results / runs[0].experiment.name)

    def estimate(run: Run) -> Duration:
        if took_s := earlier.get(_kind(run.config())):
            return Duration(run_s=statistics.fmean(took_s), earlier=len(took_s))
        if run.experiment.trains:
            return Prediction(run).duration()
        programs = [program for program in run.programs.programs if not program.service]
        limits_s = [program.time_limit_s for program in programs]
        if None in limits_s:
            return Duration(run_s=None)
        return Duration(run_s=max(filter(None, limits_s)) + _LAB_S)

    return list(map(estimate, runs))


def total(durations: Sequence[Duration], *, at_once: int = 1) -> str:
    predicted = [duration for duration in durations if duration.run_s is not None]
    runs_s = [duration.run_s or 0.0 for duration in predicted]
    runs = "1 run" if len(durations) == 1 else f"{len(durations)} runs"
    if not predicted:
        return f"{runs} to do; how long is unknown before one like it has ended"
    about = in_words(max(sum(runs_s) / at_once, *runs_s))
    if len(predicted) < len(durations):
        about += f" for {len(predicted)} of them"
    earlier = sum(duration.earlier > 0 for duration in durations)
    counts = {"from earlier runs": earlier, "predicted": len(predicted) - earlier}
    sources = [f"{count} {source}" for source, count in counts.items() if count > 0]
    if not all(duration.computing for duration in predicted):
        sources.append("computing not counted")
    return f"{runs} to do, about {about} ({', '.join(sources)})"


def in_words(duration_s: float) -> str:
    """Write a duration with the two digits that an estimate deserves."""
    if duration_s < 90:
        return f"{duration_s:.0f} s"
    return f"{duration_s / 60:.0f} min" if duration_s < 7200 else f"{duration_s / 3600:.3g} h"


def _earlier(folder: Path) -> dict[str, list[float]]:
    took_s: dict[str, list[float]] = {}
    for path in sorted(folder.glob("*/status.json")):
        status = run_directory.read_or_empty(path)  # the report tells of damaged directories
        config = run_directory.read_or_empty(path.with_name("config.json"))
        if config and status.get("verdict") in ("ok", "invalid") and status.get("wall_s"):
            took_s.setdefault(_kind(config), []).append(float(status["wall_s"]))
    return took_s


def _kind(config: dict[str, Any]) -> str:
    """Return the configuration without the seed and what is drawn from it."""
    drawn = ("seed", "key", "impairments", "schema", "folder", "profile", "capture", "limits")
    return json.dumps({key: config[key] for key in config if key not in drawn}, sort_keys=True)
