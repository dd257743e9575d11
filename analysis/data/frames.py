"""Results as data: a row of metrics per ok run, and what runs logged, as polars frames."""

from __future__ import annotations

from functools import cached_property

import polars as pl

from analysis.data import logs
from analysis.data.evidence import Evidence, with_blocks
from analysis.data.load import Results
from analysis.data.metrics import IMPAIRED, METRICS, is_of_programs


def per_run(evidence: Evidence) -> pl.DataFrame:
    """One row per ok run: `run_key`, `arm`, `seed`, the factors, and a column per metric."""
    return with_blocks(evidence.measured(), evidence.ok_runs)


def metric_names(frame: pl.DataFrame) -> list[str]:
    """The metrics among the columns of `per_run`'s frame, in the registry's order."""
    kinds = sorted(name for name in frame.columns if name.startswith(IMPAIRED))
    of_programs = [name for name in frame.columns if is_of_programs(name)]
    return [
        *(
            metric.name
            for metric in METRICS
            if metric.name in frame.columns and (not of_programs or frame[metric.name].count())
        ),
        *of_programs,
        *kinds,
    ]


def flat(frame: pl.DataFrame) -> pl.DataFrame:
    """A frame whose lists are texts, as files of comma-separated values and table programs need."""
    return frame.with_columns(pl.col(pl.List(pl.String)).list.join(", "))


def _frame(name: str, meaning: str) -> cached_property[pl.DataFrame]:
    """The property of `Frames` that is the log or table of this name."""

    def read(frames: Frames) -> pl.DataFrame:
        return flat(frames.evidence.frame(name))

    read.__doc__ = meaning
    return cached_property(read)


class Frames:
    """An experiment's results as polars frames, each read when it is first asked for.

    All but `runs` hold the ok runs only. docs/reference/frames.md describes their columns, of which
    none is nested, so `frame.write_csv(...)` works.

    Attributes:
        evidence: the runs behind the frames, with their documents: manifest, calibration, gates.
    """

    def __init__(self, evidence: Results) -> None:
        self.evidence = evidence

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {name}" for name, n in self.evidence.verdicts().items() if n)
        return f"<results of {self.evidence.experiment}: {counts}>"

    @property
    def experiment(self) -> str:
        """The experiment's name."""
        return self.evidence.experiment

    @property
    def arms(self) -> list[str]:
        """The arms of the planned runs, in the experiment's order."""
        return self.evidence.arms

    def verdicts(self) -> dict[str, int]:
        """How many planned runs have each verdict, or are missing."""
        return self.evidence.verdicts()

    @cached_property
    def runs(self) -> pl.DataFrame:
        """A row per planned run, whatever its verdict."""
        runs = self.evidence.runs
        rows = [
            (
                *(run.verdict, run.reason, run.began_at, run.wall_s),
                None if run.directory is None else str(run.directory),
            )
            for run in runs
        ]
        schema = dict(logs.FRAMES["runs"].schema)
        return logs.labels(runs).hstack(
            pl.DataFrame(rows, schema=schema, orient="row", strict=False)
        )

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """A row per ok run, and a column per metric of docs/reference/summary-json.md."""
        return per_run(self.evidence)

    rounds = _frame("rounds", "A row per round.")
    transfers = _frame("transfers", "A row per transfer and side.")
    training = _frame("training", "A row per worker and round.")
    impairments = _frame("impairments", "A row per begin and end of an impairment.")
    effects = _frame("effects", "A row per round of which it was measured what loss did.")

    def samples(self, name: str) -> pl.LazyFrame:
        """The samples `queues`, `flows` or `processes` of all ok runs that have some.

        Nothing is read before `collect`, and then only the columns and rows that are asked for.

        Raises:
            ValueError: there are no such samples, or a file of them is half-written or of another
                version: one line.
        """
        if name not in logs.SAMPLES:
            raise ValueError(f"samples {name!r}; valid: {', '.join(logs.SAMPLES)}")
        runs = self.evidence.ok_runs
        labels = logs.labels(runs)
        parts = [pl.LazyFrame(schema={**labels.schema, **logs.FRAMES[name].schema})]
        for number, run in enumerate(runs):
            assert run.directory is not None
            if (frame := logs.scan_samples(run.directory, name)) is not None:
                parts.append(labels[number].lazy().join(frame, how="cross"))
        return pl.concat(parts)
