"""From run directories to tables, figures and one report page; the analysis reads nothing else.

    import analysis
    results = analysis.load("runs", "quick")
    paths = analysis.write_report("runs")

A package imports only those above it: `data` (what run directories and kept results hold),
`statistics`, `summary` (the content of `summary.json`), `formatting`, `tables` and `figures`,
`report`. Their docstrings say what to do to add to them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing these takes a second
    from analysis.data.load import Frames
    from analysis.report.writing import ReportPaths

__all__ = ["load", "write_report"]


def load(results_dir: Path | str, experiment: str | None = None) -> Frames:
    """The runs of an experiment, and what the ok ones logged, as polars frames.

    Args:
        results_dir: the folder of `./lab run --out`, which holds a folder for each experiment; or
            the folder of an experiment.
        experiment: its name; by default that of the experiment that was planned last.

    Raises:
        ValueError: there is no such folder or experiment, or it has no runs. A frame raises it
            where a log has a wrong value, with its file and line.
    """
    from analysis.data import load

    return load.Frames(load.load(Path(results_dir), experiment))


def write_report(results_dir: Path | str, experiment: str | None = None) -> ReportPaths:
    """Write `results_dir/EXPERIMENT/report/` (page, `summary.json`, tables, figures) and the index.

    Raises:
        ValueError: as in `load`.
        OSError: the report cannot be written; an older report is still there.
    """
    from analysis.report import writing

    return writing.write_report(Path(results_dir), experiment)
