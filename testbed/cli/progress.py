"""Shows downloads and runs in progress: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from testbed.experiment import Run
from testbed.run import requirements
from testbed.run.runner import Outcome
from testbed.shared.input_error import InputError
from testbed.training import prerequisites

_LINE_EVERY_BYTES = 20_000_000
_LINE_EVERY_S, _LINE_EVERY_SHARE = 10.0, 0.05  # where there is no bar; or of the time so far
_STYLES = {"ok": "green", "failed": "red", "invalid": "yellow", "unsupported": "yellow"}


class RunProgress:
    """Shows the progress of runs that follow each other or go on side by side, of `runs_shown`."""

    def __init__(self, console: Console, bar: Progress | None, total: int) -> None:
        self._console = console
        self._bar = bar
        self._total = total
        self._done = 0
        self._executed = 0
        self._not_ok = 0
        self._began_s = time.monotonic()
        self._under_way: dict[str, float] = {}  # by label, which share of it is done
        self._line_s = self._began_s  # when the last one was printed
        if bar is not None:
            self._task = bar.add_task("", total=float(total), left="")

    def begin(self, label: str) -> OneRun:
        """A run begins."""
        return OneRun(self, label)

    def say(self, line: str | Text) -> None:
        """Print a sentence that stays on the screen."""
        self._line_s = time.monotonic()
        # One line, however long: a live display counts the lines.
        self._console.print(Text(line) if isinstance(line, str) else line, soft_wrap=True)

    def show(self, label: str, what: str, share: float) -> None:
        """Show how much of a run is done."""
        self._under_way[label] = share
        self._update(f"{label} {what}" if len(self._under_way) == 1 else "")
        now_s = time.monotonic()
        every_s = max(_LINE_EVERY_S, _LINE_EVERY_SHARE * (now_s - self._began_s))
        if self._bar is None and now_s >= self._line_s + every_s:
            left = self._left(sum(self._under_way.values()))
            line = f"[{self._done}/{self._total}] {label}: {what}" + (f", {left}" if left else "")
            self.say(f"{line} ({now_s - self._began_s:.0f} s so far)")

    def ended(self, label: str, outcome: Outcome) -> None:
        """Print the verdict of a run that has ended."""
        self._under_way.pop(label, None)
        self._done += 1
        self._executed += outcome.executed
        self._not_ok += outcome.verdict != "ok"
        line = with_verdict(f"[{self._done}/{self._total}] {label}", outcome)
        if not outcome.executed:
            line.append(" (done before)")
        if outcome.reason:
            line.append(f": {outcome.reason}")
        elif self._bar is None and outcome.executed and self._done < self._total:
            line.append(f", {self._left()}")
        self.say(line)
        self._update("")

    def _update(self, text: str) -> None:
        if self._bar is None:
            return
        if not text and self._under_way:
            text = f"{len(self._under_way)} runs under way"
        if self._not_ok:
            text = f"{self._not_ok} not ok  {text}"
        share = sum(self._under_way.values())
        self._bar.update(
            self._task, completed=self._done + share, description=text, left=self._left(share)
        )

    def _left(self, share: float = 0.0) -> str:
        """Time left, from the mean of what was executed in this call."""
        done = self._executed + share
        if done < 0.2:
            return ""
        left_s = (time.monotonic() - self._began_s) / done * (self._total - self._done - share)
        return f"about {left_s / 60:.0f} min left" if left_s > 90 else f"about {left_s:.0f} s left"


def with_verdict(label: str, outcome: Outcome) -> Text:
    """A run's label and its verdict in colour."""
    line = Text(f"{label}: ")
    return line.append(outcome.verdict, style=_STYLES.get(outcome.verdict, ""))


class OneRun:
    """Shows one run."""

    def __init__(self, shown: RunProgress, label: str) -> None:
        self._shown = shown
        self._label = label
        self._now = "starting", 0.0
        shown.show(label, *self._now)

    def record(self, record: dict[str, Any]) -> None:
        """Show a progress record of the run; an empty one says that it still goes on."""
        if "rounds" in record:
            share = record["round"] / record["rounds"]
            self._now = f"round {record['round']}/{record['rounds']}", share
        elif "stage" in record:
            self._now = str(record["stage"]), 0.0
        self._shown.show(self._label, *self._now)

    def again(self, outcome: Outcome, number: int, retries: int) -> None:
        """Print that an attempt was invalid and why, and that another one follows."""
        line = with_verdict(self._label, outcome)
        self._shown.say(line.append(f": {outcome.reason}; retry {number} of {retries}"))
        self._shown.show(self._label, "starting again", 0.0)

    def end(self, outcome: Outcome) -> None:
        """Print how it ended."""
        self._shown.ended(self._label, outcome)


@contextmanager
def runs_shown(console: Console, total: int) -> Iterator[RunProgress]:
    """A progress display for `total` runs, for the duration of the body."""
    if not console.is_terminal:
        yield RunProgress(console, None, total)
        return
    share, left = TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.fields[left]}")
    columns = (TextColumn("{task.description}"), BarColumn(), share, TimeElapsedColumn(), left)
    with Progress(*columns, console=console, transient=True) as bar:
        yield RunProgress(bar.console, bar, total)


def meet_prerequisites(runs: Sequence[Run], console: Console) -> None:
    """Download and check what these runs train, or find their programs, before the first of them.

    Raises:
        InputError: something cannot be had.
    """
    with _named(runs):
        _meet([run.training_need for run in runs if run.experiment.trains], console)
        for run in runs:
            if not run.experiment.trains:
                programs = run.config()["workload"]["programs"]
                if missing := requirements.missing_program(programs, run.folder):
                    raise InputError(f"workload.programs: {missing}")


def refuse_short_shares(runs: Sequence[Run]) -> None:
    """Refuse batches larger than a worker's share of the data, where they are here already."""
    with _named(runs):
        prerequisites.refuse_short_shares(
            run.training_need for run in runs if run.experiment.trains
        )


@contextmanager
def _named(runs: Sequence[Run]) -> Iterator[None]:
    """Have an error name the experiment's file."""
    try:
        yield
    except InputError as error:
        source = next((run.source for run in runs if run.source is not None), None)
        raise InputError(f"{source}: {error}" if source else str(error)) from error


def _meet(needs: Sequence[prerequisites.Need], console: Console) -> None:
    printed: dict[str, int] = {}

    def say(name: str, done: int, total: int | None) -> None:
        part = done // _LINE_EVERY_BYTES
        if printed.get(name) != part:
            printed[name] = part
            of = "" if total is None else f" of {total / 1e6:.0f}"
            console.print(f"downloading {name}: {done / 1e6:.0f}{of} MB", highlight=False)

    if not console.is_terminal:
        prerequisites.prepare(needs, say)
        return
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        tasks = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(f"downloading {name}", total=total)
            bar.update(tasks[name], completed=done, total=total)

        prerequisites.prepare(needs, show)
