"""The verb `compare`."""

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import Out
from testbed.cli.terminal import console
from testbed.shared.run_directory import RESULTS

EXAMPLE = "Example: ./lab compare quick experiments/results/quick    or two runs, by their keys"
_Result = Annotated[
    str,
    typer.Argument(
        help="an experiment's name, its YAML file, a folder of results or of kept ones; or a run"
    ),
]


def compare(
    first: _Result,
    second: _Result,
    out: Out = RESULTS,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write all metrics to this file")
    ] = None,
) -> None:
    """Compare two results of an experiment, such as a lab's and simulated ones, or two runs."""
    from testbed.cli import places

    folders = places.result(first, out), places.result(second, out)
    from testbed.cli import comparison_view  # imports what reads results, which takes a second

    comparison_view.show(*folders, json_file, console())
