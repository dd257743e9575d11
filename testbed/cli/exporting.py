"""The verb `export`."""

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import Name, Out
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import RESULTS

EXAMPLE = "Example: ./lab export quick -o quick.zip"


def export(
    name: Name,
    target: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="archive; NAME.zip")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="with samples of queues and captures, too")
    ] = False,
    out: Out = RESULTS,
) -> None:
    """Pack an experiment's results into one archive from which a reader recomputes its tables."""
    from testbed.cli import places

    place = places.find(name, out)
    place.require()
    if place.experiment is None or place.key is not None:
        raise InputError(f"{name}: valid: one experiment's name, its YAML file, or its folder")
    from testbed.cli import report_view  # imports what draws figures, which takes a second
    from testbed.run import exporting
    from testbed.shared import sizes

    target = target or Path(f"{place.experiment}.zip")
    exporting.refuse(place.folder, target)
    report_view.write(place)
    size = exporting.export(place.folder, target, everything=everything)
    print(f"archive: {target}, {sizes.in_words(size)}")
