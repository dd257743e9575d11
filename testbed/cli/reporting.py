"""The verb that writes reports, with its options."""

import json
from typing import Annotated

import typer

from testbed.cli.options import AsJson, Out
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import RESULTS

EXAMPLE = "Example: ./lab report quick    or several at once: ./lab report quick fan-in"


def report(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="WHAT...", help="experiments' names, YAML files, folders; all"),
    ] = None,
    out: Out = RESULTS,
    as_json: AsJson = False,
    readme: Annotated[
        bool,
        typer.Option("--readme", help="store them in experiments/results/, fill pages' tables"),
    ] = False,
    include_invalid: Annotated[
        bool,
        typer.Option("--include-invalid", help="show invalid runs' numbers, too, marked as such"),
    ] = False,
) -> None:
    """Write the reports of finished runs again, from their directories alone."""
    from testbed.cli import places

    if readme and include_invalid:
        raise InputError("--include-invalid: valid without --readme, which keeps ok runs alone")
    names: list[str] | list[None] = what or [None]
    found = list(dict.fromkeys(places.find(each, out) for each in names))
    for place in found:  # nothing is written where one name is wrong
        place.require()
    from testbed.cli import report_view  # imports what draws figures, which takes a second

    written = [
        each
        for place in found
        for each in report_view.write(place, as_json=as_json, include_invalid=include_invalid)
    ]
    if as_json:
        print(json.dumps({"reports": report_view.records(written)}, indent=1))
    for place in found if readme else ():
        report_view.keep(place, as_json=as_json)
