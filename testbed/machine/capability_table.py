"""`./lab check` in the terminal: one row for each thing that was tried."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from testbed.machine.capabilities import QUICK, Capability, missing


def table(found: Mapping[str, Capability]) -> Table:
    """Capability, yes or no, what it enables, how to get it; legible at 80 columns."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    shown.add_column("capability", no_wrap=True)
    shown.add_column("here", no_wrap=True)
    shown.add_column("what it enables", ratio=2)
    shown.add_column("how to get it", ratio=3)
    for name, each in found.items():
        if each.available:
            shown.add_row(name, "[green]yes[/]", each.enables, f"[dim]{each.reason}[/]")
        else:
            colour = "red" if name in QUICK else "yellow"
            how = f"{each.reason}: {each.how}" if each.reason else each.how
            shown.add_row(name, f"[{colour}]no[/]", each.enables, how)
    return shown


def show(found: Mapping[str, Capability], console: Console) -> None:
    """Print the table and whether the quick experiment could run."""
    console.print(table(found))
    absent = missing(dict(found), QUICK)
    if absent:
        console.print("\n./lab run quick cannot work here:", style="bold red")
        for line in absent:
            console.print(f"  {line}", markup=False)
    else:
        console.print("\n./lab run quick can work here.", style="bold green")
