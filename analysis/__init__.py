"""From run directories to tables, figures and one report page; it reads nothing else.

    from analysis import write_report
    paths = write_report(Path("runs"))
    print(paths.main_table_text)

Importing this package is cheap: polars, scipy and matplotlib are imported by the first call.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.data.load import Results
    from analysis.report.writing import ReportPaths
    from analysis.tables.rendering import Table

__all__ = ["load", "main_table", "main_table_text", "update_readme", "write_report"]


def write_report(results_dir: Path, experiment: str | None = None) -> ReportPaths:
    """Write `results_dir/report/`: the page, `summary.json`, the tables and the figures.

    Args:
        results_dir: what `./lab run --out` was given; holds one folder per experiment.
        experiment: which of them; by default the one that was planned last.

    Raises:
        ValueError: one line: no such folder, no runs, or an unknown experiment.
        OSError: the report cannot be written; an older report is still there.
    """
    from analysis.report.writing import write_report as write

    return write(results_dir, experiment)


def load(results_dir: Path, experiment: str | None = None) -> Results:
    """An experiment's runs and, as polars frames, what its ok runs logged.

    Raises:
        ValueError: as `write_report`.
    """
    from analysis.data.load import load as read

    return read(results_dir, experiment)


def main_table(results_dir: Path, experiment: str | None = None) -> Table:
    """The comparison of the arms as a table model, without writing anything.

    Raises:
        ValueError: as `write_report`.
    """
    from analysis.data.load import load
    from analysis.summary.document import summarise
    from analysis.tables.main_table import main_table as table

    return table(summarise(load(results_dir, experiment)))


def main_table_text(
    results_dir: Path, experiment: str | None = None, *, width: int | None = None
) -> str:
    """The comparison of the arms as plain text; beyond `width` columns, intervals are left out.

    Raises:
        ValueError: as `write_report`.
    """
    from analysis.tables.rendering import to_text

    return to_text(main_table(results_dir, experiment), width=width)


def update_readme(results_dir: Path, experiment: str | None = None) -> Path:
    """Keep results in `experiments/results/NAME/` and write README's tables from all kept ones.

    Returns:
        The folder with the kept results.

    Raises:
        ValueError: as `write_report`; no ok run; or README's marks do not fit.
    """
    from analysis.report import kept_results

    folder = kept_results.keep(results_dir, experiment, root=kept_results.ROOT)
    kept_results.write_readme(root=kept_results.ROOT)
    return folder
