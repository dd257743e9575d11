"""What runs need is fetched and looked at before the first lab, with progress for a person."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from testbed.experiment import Run
from testbed.shared.yaml_input import InputError
from testbed.training import prerequisites

_LINE_EVERY_BYTES = 20_000_000


def prepare(runs: Sequence[Run], console: Console) -> None:
    """Do for these runs what `preparation` says; downloads show a bar, or lines if not a terminal.

    Raises:
        InputError: one line.
    """
    try:
        _prepare([run.training_need for run in runs], console)
    except InputError as error:
        source = next((run.source for run in runs if run.source is not None), None)
        raise InputError(f"{source}: {error}" if source else str(error)) from error


def _prepare(needs: Sequence[prerequisites.Need], console: Console) -> None:
    if not console.is_terminal:
        prerequisites.prepare(needs, _Lines(console).report)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        tasks = {}

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(f"downloading {name}", total=total)
            bar.update(tasks[name], completed=done, total=total)

        prerequisites.prepare(needs, report)


class _Lines:
    """One line at the beginning of a download, and one every 20 MB."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, int] = {}

    def report(self, name: str, done: int, total: int | None) -> None:
        part = done // _LINE_EVERY_BYTES
        if self._told.get(name) == part:
            return
        self._told[name] = part
        of = "" if total is None else f" of {total / 1e6:.0f}"
        self._console.print(f"downloading {name}: {done / 1e6:.0f}{of} MB", highlight=False)
