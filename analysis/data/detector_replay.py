"""Asks the detectors of runs again, about gradients that no loss had touched.

The detector of a run with loss reads the averaged gradient as it arrived, with zeros for what did
not. So its answers depend on the loss, and the loss on its answers. A replay shows it other norms:

    reliable     those of the run with the same seed, at the same point of the sweep, whose arm gave
                 up nothing: another training, which loss never touched
    before_loss  the run's own, before loss: the recorded norm over the `norm_ratio` that
                 `training.measure_every: 1` logs

Only `gradient-norm` with a cadence in rounds is replayed: it needs nothing but norms. A run whose
detector, asked again about its *own* norms, does not repeat what it said is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from analysis.data.evidence import Evidence, Run, factor_text
from analysis.data.load import Results
from analysis.data.measure import WHOLE
from analysis.data.records import section
from analysis.data.replay_metrics import BEFORE_LOSS, LOSSLESS, PREFIX, RELIABLE

OWN = "own"
_FIRST_CHOICE = "none"  # of the arms that give up nothing: the same transport, made reliable

Norms = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Replayable:
    """A run whose detector can be asked again.

    Attributes:
        run: which one.
        said: after each round, whether it was critical.
        norms: of the averaged gradient in each round, by their source.
    """

    run: Run
    said: Sequence[bool]
    norms: Mapping[str, Norms]

    @property
    def setting(self) -> dict[str, Any]:
        """The detector's section of the run's configuration."""
        return section(self.run.config, "phases")


@dataclass(frozen=True, kw_only=True)
class Replays:
    """The runs that can be replayed; `reliable_arm` gave up nothing, `unlike` are left out."""

    reliable_arm: str | None = None
    runs: list[Replayable] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)


def find(evidence: Evidence) -> Replays:
    """The runs to replay; none where the logs, or the detectors themselves, are not at hand."""
    if not isinstance(evidence, Results) or evidence.detect is None:
        return Replays()
    said, own = _recorded(evidence)
    before_loss = _before_loss(evidence, own)
    reliable_arm = _reliable_arm(evidence)
    without_loss = {
        _place(run): own.get(run.key) for run in evidence.ok_runs if run.arm == reliable_arm
    }
    runs, unlike = [], []
    for run in evidence.ok_runs:
        if run.key not in own or not _reads_norms_alone(section(run.config, "phases")):
            continue
        norms = {OWN: own[run.key]}
        reliable = without_loss.get(_place(run))
        if reliable is not None and len(reliable) == len(norms[OWN]):
            norms[RELIABLE] = reliable
        if run.key in before_loss:
            norms[BEFORE_LOSS] = before_loss[run.key]
        each = Replayable(run=run, said=said[run.key], norms=norms)
        if evidence.detect([each.setting], norms[OWN])[0] == each.said:
            runs.append(each)
        else:
            unlike.append(run.key)
    return Replays(reliable_arm=reliable_arm, runs=runs, unlike=unlike)


def compared(said: Sequence[bool], lossless: Sequence[bool]) -> dict[str, float]:
    """Shares of the rounds: `critical` without loss, and what was `missed` and `invented`."""
    pairs = list(zip(said, lossless, strict=True))
    return {
        "critical": sum(lossless) / len(pairs),
        "missed": sum(without and not was for was, without in pairs) / len(pairs),
        "invented": sum(was and not without for was, without in pairs) / len(pairs),
    }


def measured(results: Results) -> dict[str, dict[str, float]]:
    """The metrics of each run that was replayed with its own setting, by its key."""
    found: dict[str, dict[str, float]] = {}
    for each in find(results).runs:
        assert results.detect is not None
        for source in LOSSLESS:
            if source in each.norms:
                (lossless,) = results.detect([each.setting], each.norms[source])
                for name, share in compared(each.said, lossless).items():
                    found.setdefault(each.run.key, {})[f"{PREFIX}{source}.{name}"] = share
    return found


def _reads_norms_alone(phases: Mapping[str, Any]) -> bool:
    return phases.get("detector") == "gradient-norm" and isinstance(phases.get("cadence"), int)


def _place(run: Run) -> tuple[int, tuple[tuple[str, str | None], ...]]:
    """What runs share that differ in their arm alone."""
    return run.seed, tuple((name, factor_text(value)) for name, value in run.factors.items())


def _recorded(results: Results) -> tuple[dict[str, list[bool]], dict[str, list[float]]]:
    """What each detector said after each round, and the norm that it read, of whole logs."""
    said, norms = {}, {}
    columns = ("round", "critical", "gradient_norm")
    for key, numbers, critical, read in _by_run(results.latencies, columns):
        if numbers == list(range(len(numbers))) and None not in critical:
            said[key] = critical
            # A norm that is not finite is logged as null.
            norms[key] = [math.nan if norm is None else norm for norm in read]
    return said, norms


def _before_loss(results: Results, own: Mapping[str, Norms]) -> dict[str, list[float]]:
    """The norms that the workers' gradients had before loss, of runs that measured all rounds."""
    found: dict[str, list[float]] = {}
    ratio = "norm_ratio.gathered"
    rows = results.deviations.filter(pl.col(ratio) > 0)
    for key, numbers, ratios in _by_run(rows, ("round", ratio)):
        if key in own and numbers == list(range(len(own[key]))):
            found[key] = [norm / each for norm, each in zip(own[key], ratios, strict=True)]
    return found


def _by_run(rows: pl.DataFrame, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Each run's key and its columns as lists, in the order of its rounds."""
    ordered = rows.sort("round", maintain_order=True).group_by("run_key", maintain_order=True)
    return ordered.agg(columns).iter_rows()


def _reliable_arm(results: Results) -> str | None:
    """An arm of which no receiver went without a chunk in any ok run; kernel TCP is such, too."""
    of_run = dict(results.measured.tables["metrics"].select("run_key", WHOLE).iter_rows())
    found = [
        arm
        for arm in results.arms
        # None: its logs have no receiver, as those of programs.
        if (whole := [of_run[run.key] for run in results.ok_runs if run.arm == arm])
        and all(each is not False for each in whole)
        and any(whole)
    ]
    ordered = sorted(found, key=lambda arm: (arm != _FIRST_CHOICE, results.arms.index(arm)))
    return next(iter(ordered), None)
