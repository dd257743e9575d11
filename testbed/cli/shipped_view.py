"""Prints the experiments that come with the project, and imports little, to answer at once."""

from __future__ import annotations

import dataclasses
import json

from rich.console import Console

from testbed import experiment
from testbed.cli.terminal import PlainTable


def show_shipped(console: Console, *, as_json: bool) -> None:
    """Print the experiments that come with the project."""
    found = [experiment.summary(name) for name in experiment.names()]
    if as_json:
        print(json.dumps([dataclasses.asdict(each) for each in found], indent=1))
        return
    table = PlainTable("experiment", "runs", "profiles", "what it shows")
    for each in found:
        table.add_row(each.name, str(each.runs), ", ".join(each.profiles), each.description)
    console.print(table)
