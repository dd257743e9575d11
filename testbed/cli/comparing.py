"""The verb `compare`."""

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.terminal import console

EXAMPLE = "Example: ./lab compare experiments/results/quick /tmp/simulated/quick"


def compare(
    first: Annotated[Path, typer.Argument(help="a folder of runs, or of kept results")],
    second: Annotated[Path, typer.Argument(help="another one, of the same experiment")],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write all metrics to this file")
    ] = None,
    expect: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="ranges of ratios; exit status 1 if one does not hold"),
    ] = None,
) -> None:
    """Compare two results of an experiment, such as a lab's and simulated ones, seed by seed."""
    from testbed.cli import comparison_view  # imports what reads results, which takes a second

    if not comparison_view.show(first, second, json_file, console(), expect=expect):
        raise typer.Exit(1)
