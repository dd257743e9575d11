"""Shows downloads, and runs in progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from testbed.experiment import Run
from testbed.run import requirements
from testbed.run.runner import OnProgress, Outcome
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
        self.outcomes: dict[str, Outcome] = {}  # by the keys of the runs that have ended
        self._began_s = time.monotonic()
        self._under_way: dict[str, tuple[str, float]] = {}  # by label: where it is, which share
        self._line_s = self._began_s  # when the last one was printed
        if bar is not None:
            self._task = bar.add_task("", total=float(total), left="")

    def begin(self, label: str, what: str = "starting") -> OnProgress:
        """Show that a run begins; returns what takes its progress records."""
        self._under_way[label] = what, 0.0
        self.record(label, {})
        return functools.partial(self.record, label)

    def record(self, label: str, record: dict[str, Any]) -> None:
        """Show a progress record of a run; an empty one says that it still goes on."""
        if rounds := record.get("rounds"):
            self._under_way[label] = f"round {record['round']}/{rounds}", record["round"] / rounds
        elif "stage" in record:
            self._under_way[label] = str(record["stage"]), 0.0
        what, _ = self._under_way[label]
        self._update(f"{label} {what}" if len(self._under_way) == 1 else "")
        now_s = time.monotonic()
        every_s = max(_LINE_EVERY_S, _LINE_EVERY_SHARE * (now_s - self._began_s))
        if self._bar is None and now_s >= self._line_s + every_s:
            words = ", ".join(filter(None, (what, self._left())))
            place = f"[{len(self.outcomes)}/{self._total}] {label}"
            self.say(f"{place}: {words} ({now_s - self._began_s:.0f} s so far)")

    def again(self, label: str, outcome: Outcome, number: int, retries: int) -> None:
        """Print that an attempt was invalid and why, and that another one follows."""
        line = _with_verdict(label, outcome)
        self.say(line.append(f": {outcome.reason}; retry {number} of {retries}"))
        self.begin(label, "starting again")

    def end(self, outcome: Outcome) -> None:
        """Print the verdict of a run that has ended."""
        label = outcome.run.label
        self._under_way.pop(label, None)
        self.outcomes[outcome.run.key] = outcome
        line = _with_verdict(f"[{len(self.outcomes)}/{self._total}] {label}", outcome)
        if not outcome.executed:
            line.append(" (done before)")
        if outcome.reason:
            line.append(f": {outcome.reason}")
        elif self._bar is None and outcome.executed and len(self.outcomes) < self._total:
            line.append(f", {self._left()}")
        self.say(line)
        self._update("")

    def say(self, line: str | Text) -> None:
        """Print a sentence that stays on the screen."""
        self._line_s = time.monotonic()
        # One line, however long: a live display counts the lines.
        self._console.print(Text(line) if isinstance(line, str) else line, soft_wrap=True)

    def _update(self, text: str) -> None:
        if self._bar is None:
            return
        if not text and self._under_way:
            text = f"{len(self._under_way)} runs under way"
        if not_ok := sum(outcome.verdict != "ok" for outcome in self.outcomes.values()):
            text = f"{not_ok} not ok  {text}"
        done = len(self.outcomes) + self._share()
        self._bar.update(self._task, completed=done, description=text, left=self._left())

    def _share(self) -> float:
        """What of the runs under way is done, in runs."""
        return sum(share for _, share in self._under_way.values())

    def _left(self) -> str:
        """Time left, from the mean of what was executed in this call."""
        share = self._share()
        done = sum(outcome.executed for outcome in self.outcomes.values()) + share
        if done < 0.2:
            return ""
        left_s = (
            (time.monotonic() - self._began_s) / done * (self._total - len(self.outcomes) - share)
        )
        return f"about {left_s / 60:.0f} min left" if left_s > 90 else f"about {left_s:.0f} s left"


def _with_verdict(label: str, outcome: Outcome) -> Text:
    return Text(f"{label}: ").append(outcome.verdict, style=_STYLES.get(outcome.verdict, ""))


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
    """Download and check what these runs train, or find their programs."""
    printed: dict[str, int] = {}

    def say(name: str, done: int, total: int | None) -> None:
        part = done // _LINE_EVERY_BYTES
        if printed.get(name) != part:
            printed[name] = part
            of = "" if total is None else f" of {total / 1e6:.0f}"
            console.print(f"downloading {name}: {done / 1e6:.0f}{of} MB", highlight=False)

    with _named(runs):
        prerequisites.prepare([run.training_need for run in runs if run.experiment.trains], say)
        for run in runs:
            if not run.experiment.trains:
                programs = run.config()["workload"]["programs"]
                if missing := requirements.missing_program(programs, run.folder):
                    raise InputError(f"workload.programs: {missing}")


@contextmanager
def _named(runs: Sequence[Run]) -> Iterator[None]:
    """Have an error name the experiment's file."""
    try:
        yield
    except InputError as error:
        source = runs[0].source
        raise InputError(f"{source}: {error}" if source else str(error)) from error
