"""From run directories to tables, figures and one report page; the analysis reads nothing else.

    import analysis
    paths = analysis.write_report("runs")
    results = analysis.load("runs", "quick")

The rooms, each of which imports only those above it (`pyproject.toml` holds the contract):

    data        what run directories and kept results hold
    statistics  intervals, tests, equivalence, theoretical bounds
    summary     pairs of runs, the papers' numbers, and the content of `summary.json`
    formatting  numbers in words
    tables, figures, report

To add to a room, see its docstring. The first call imports polars, scipy and matplotlib.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.data.load import Frames
    from analysis.report.writing import ReportPaths

__all__ = ["load", "update_readme", "write_index", "write_report"]


def load(
    results_dir: Path | str,
    experiment: str | None = None,
    *,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    point: Mapping[str, object] | None = None,
) -> Frames:
    """The runs of an experiment, and what the ok ones logged, as polars frames.

    Args:
        results_dir: what `./lab run --out` was given; holds one folder per experiment, and such a
            folder will do as well.
        experiment: which of them; by default the one that was planned last.
        arms: only runs of these arms.
        seeds: only runs of these seeds.
        point: only runs with these levels of the sweep's factors, such as `{"burst": "90 %"}`:
            labels, or values where a level has none. Of runs that are not chosen no file is read.

    Raises:
        ValueError: one line: no such folder, no runs, an unknown experiment, arm, seed or level. A
            frame raises it where a log has a wrong value, with its file and line.
    """
    from analysis.data import load

    chosen = functools.partial(load.choose, arms=arms, seeds=seeds, point=point)
    return load.Frames(load.load(Path(results_dir), experiment, chosen=chosen))


def write_report(
    results_dir: Path | str,
    experiment: str | None = None,
    *,
    include_invalid: bool = False,
) -> ReportPaths:
    """Write `results_dir/EXPERIMENT/report/` (page, `summary.json`, tables, figures) and the index.

    Args:
        results_dir: as of `load`.
        experiment: as of `load`.
        include_invalid: invalid runs enter the numbers; page, tables and figures are marked so.

    Raises:
        ValueError: as `load`.
        OSError: the report cannot be written; an older report is still there.
    """
    from analysis.report import writing

    return writing.write_report(Path(results_dir), experiment, include_invalid=include_invalid)


def write_index(results_dir: Path | str) -> Path | None:
    """Write `results_dir/report/index.html`, which links to the experiments' reports.

    Returns:
        The page; None where no experiment has a report: then the folder is removed.
    """
    from analysis.report import writing

    return writing.write_index(Path(results_dir))


def update_readme(results_dir: Path | str, experiment: str | None = None) -> Path:
    """Keep results in `experiments/results/NAME/`, and write the tables of README and docs/.

    Returns:
        The folder with the kept results.

    Raises:
        ValueError: as `load`; no ok run; or a document's marks do not fit.
    """
    from analysis.report import kept_results

    folder = kept_results.keep(Path(results_dir), experiment, root=kept_results.ROOT)
    kept_results.write_readme(root=kept_results.ROOT)
    return folder
