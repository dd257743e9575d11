"""What the detectors of finished runs would have said with another eta or cadence or without loss.

Only what a detector says is computed again, not the training. Where the tolerance depends on the
phase, other answers would have led to other losses and so to other norms: there, what is found away
from the runs' own setting is about the gradients of these runs, and no forecast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from analysis.data import detector_replay
from analysis.data.detector_replay import OWN, Replayable
from analysis.data.evidence import Evidence, factor_text
from analysis.data.load import Results
from analysis.data.replay_metrics import LOSSLESS
from analysis.statistics.intervals import Estimate, mean_interval
from analysis.summary.lookup import factors_text

ETAS = tuple(tenths / 10 for tenths in range(1, 11))  # the norm cannot fall by more than 1
CADENCES = (1, 2, 5, 10, 20)  # in rounds
MOST_SEEDS = 20  # of an arm at a point of the sweep: each costs some ten milliseconds
_SCHEMA: Any = {
    **dict.fromkeys(["point", "arm"], pl.String),
    **dict.fromkeys(["seed", "cadence", "rounds"], pl.Int64),
    **dict.fromkeys(["eta", "critical"], pl.Float64),
    "is_own": pl.Boolean,
}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The answers of every replayed detector at every setting.

    Attributes:
        reliable_arm: gave up nothing; its norms are the `reliable` ones.
        unlike: runs whose detector, asked again, did not say what it had said: left out.
        rows: a row per run, eta and cadence, with `point`, `arm`, `seed`, `rounds`, `is_own` (the
            run's own setting), `critical` (the share of the rounds, by the run's own norms), and
            for each source of norms without loss `SOURCE_critical`, `SOURCE_missed` and
            `SOURCE_invented`.
    """

    reliable_arm: str | None = None
    unlike: list[str] = field(default_factory=list)
    rows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_SCHEMA))

    def share(self, point: str, arm: str, eta: float, cadence: int) -> Estimate:
        """The share of critical rounds at a setting, over seeds."""
        found = self.rows.filter(point=point, arm=arm, eta=eta, cadence=cadence)
        return mean_interval(found["critical"].to_list())


def sweep(evidence: Evidence) -> Sweep:
    """Ask runs' detectors again, at every eta and cadence; empty where none can be.

    Where an arm has more than `MOST_SEEDS` runs at a point, only its first ones are asked.
    """
    found = detector_replay.find(evidence)
    asked = Counter[str]()
    rows = []
    for each in found.runs:
        place = f"{each.run.arm} {each.run.factors}"
        asked[place] += 1
        if asked[place] <= MOST_SEEDS:
            rows += _rows(evidence, each)
    if not rows:
        return Sweep(reliable_arm=found.reliable_arm, unlike=found.unlike)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    frame = pl.DataFrame(rows, infer_schema_length=None).select(columns)
    return Sweep(reliable_arm=found.reliable_arm, unlike=found.unlike, rows=frame)


def _rows(evidence: Evidence, each: Replayable) -> list[dict[str, Any]]:
    assert isinstance(evidence, Results) and evidence.detect is not None
    own = (each.setting["eta"], each.setting["cadence"])
    grid = sorted({*((eta, cadence) for eta in ETAS for cadence in CADENCES), own})
    settings = [each.setting | {"eta": eta, "cadence": cadence} for eta, cadence in grid]
    said = {source: evidence.detect(settings, norms) for source, norms in each.norms.items()}
    run = each.run
    labels = {
        "point": factors_text({name: factor_text(value) for name, value in run.factors.items()}),
        "arm": run.arm,
        "seed": run.seed,
        "rounds": len(each.said),
    }
    rows = []
    for at, (eta, cadence) in enumerate(grid):
        answers = said[OWN][at]
        row = labels | {"eta": float(eta), "cadence": cadence, "is_own": (eta, cadence) == own}
        row["critical"] = sum(answers) / len(answers)
        for source in LOSSLESS:
            if source in said:
                shares = detector_replay.compared(answers, said[source][at])
                row |= {f"{source}_{name}": share for name, share in shares.items()}
        rows.append(row)
    return rows


def own_settings(rows: pl.DataFrame) -> Sequence[tuple[float, int]]:
    """The settings that the runs themselves had, of these rows of a sweep."""
    return sorted(set(rows.filter("is_own").select("eta", "cadence").iter_rows()))
