"""Executes the runs of `./lab run` and `./lab simulate`, from prerequisites to the report."""

from __future__ import annotations

import functools
import importlib.util
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from testbed import experiment
from testbed.cli import places, plan
from testbed.cli.options import Execution, LabExecution, names_in
from testbed.cli.plan import Chosen
from testbed.cli.terminal import console, say
from testbed.experiment import Run
from testbed.experiment.run import blocks
from testbed.machine import capabilities, steadiness
from testbed.run import planning, requirements, runner
from testbed.run.runner import OnProgress, Outcome
from testbed.shared import run_directory
from testbed.shared.input_error import InputError
from testbed.training import prerequisites

if TYPE_CHECKING:
    from testbed.cluster.scheduler import Scheduler

SLOW_PROFILE = "slow"
RETRIES = 2  # of an invalid run
_FLAWS = ("bound_reached", "packets_dropped", "failure")
_LINE_EVERY_BYTES = 20_000_000
_LINE_EVERY_S, _LINE_EVERY_SHARE = 10.0, 0.05  # where there is no bar; or of the time so far


def run(options: Execution, *, simulated: bool = False) -> bool:
    """Execute what of an experiment is not ok yet; return whether none failed or was invalid."""
    if options.scheduler is not None and options.retries is not None:
        words = "only one of them; the same command tries again what is not ok"
        raise InputError(f"--retries and --scheduler: {words}")
    screen = console()
    chosen = plan.choose(options, simulated=simulated)
    runner.require_writable(chosen.results)
    for remark in chosen.remarks():
        say(screen, remark)
    capture = _captured_hosts(options, chosen.runs)
    if not simulated and options.scheduler is None:  # whose machines must execute the same
        chosen = sized(chosen, screen)
    outcomes = _execute(options, chosen, capture, screen)
    if any(outcome.verdict == "interrupted" for outcome in outcomes):  # by a full disk
        runner.require_space(chosen.results, chosen.runs[-1])
    from testbed.cli import report_view  # imports what draws figures, which takes a second

    report_view.write(places.Place(results=chosen.results, experiment=chosen.folder.name))
    for line in _captures(outcomes):
        say(screen, line)
    return not any(outcome.verdict in ("failed", "invalid") for outcome in outcomes)


def _captured_hosts(options: Execution, runs: Sequence[Run]) -> list[str]:
    pcap = options.pcap if isinstance(options, LabExecution) else None
    valid, names = runs[0].experiment.topology.host_names(), names_in(pcap, "--pcap")
    for name in names:
        if name not in valid:
            raise InputError(f"--pcap {pcap}: unknown host {name!r}; valid: {', '.join(valid)}")
    return names


def sized(chosen: Chosen, console: Console) -> Chosen:
    """Return what was chosen, in the profile that fits this machine; say what changes."""
    # Probed where an experiment has that profile, none was asked for, and none has been planned.
    names = [selection.name for selection in chosen.selections if selection.profile is None]
    if not names or SLOW_PROFILE not in experiment.profile_names(names[0]):
        return chosen
    slow = [replace(selection, profile=SLOW_PROFILE) for selection in chosen.selections]
    profile = planning.read(chosen.folder).get("profile")
    if profile == SLOW_PROFILE:
        return replace(chosen, selections=slow)
    rate_bps = max(run.experiment.topology.rate_bps for run in chosen.runs)
    try:  # a second chance: a pause spoils the first
        machine = None if profile else steadiness.probe((rate_bps, rate_bps))
    except InputError:
        return chosen  # why no lab can be built is said by what needs one
    if machine is None or machine.rate_bps is not None:
        return chosen
    kept = "which --profile laptop would keep"
    say(console, f"profile {SLOW_PROFILE} instead of laptop, {kept}: {machine.sentence()}")
    return replace(chosen, selections=slow)


def _execute(
    options: Execution, chosen: Chosen, capture: list[str], console: Console
) -> list[Outcome]:
    results, runs = chosen.results, chosen.runs
    planning.check(results, runs)
    verdicts = Counter(_verdict(results, run) for run in runs)
    if capture and verdicts["ok"] and not options.anew:
        first = next(run.label for run in runs if _verdict(results, run) == "ok")
        raise InputError(
            f"--pcap: {verdicts['ok']} of these runs are ok already and would not be recorded "
            f"({first}); record them in another folder with --out DIR, or with --anew"
        )
    if options.scheduler is not None:
        from testbed.cluster.scheduler import Scheduler

        with closing(Scheduler(options.scheduler, capture).connect()) as scheduler:
            _store_plan(options, chosen, verdicts, console)
            with progress_shown(console, len(runs)) as progress:
                _share_out(chosen, scheduler, progress)
    else:
        if options.anew or verdicts["ok"] < len(runs):
            _require(chosen, console)
        _store_plan(options, chosen, verdicts, console)
        plan.show_time(results, runs, console)
        with progress_shown(console, len(runs)) as progress:
            if chosen.simulated:
                from testbed.run import simulating

                outcomes = runner.simulate_side_by_side(
                    results, runs, lambda run: progress.begin(run.label), simulating.execute
                )
                for outcome in outcomes:
                    progress.end(outcome)
            else:
                retries = RETRIES if options.retries is None else options.retries
                _one_by_one(chosen, capture, retries, progress)
    return [progress.outcomes[run.key] for run in runs]


def _require(chosen: Chosen, console: Console) -> None:
    if any(run.experiment.trains for run in chosen.runs) and not importlib.util.find_spec("torch"):
        raise InputError("training needs torch, which was left out here: LAB_TORCH=1 ./lab check")
    fetch_prerequisites(chosen.runs, console)
    if not chosen.simulated:
        capabilities.require()


def fetch_prerequisites(runs: Sequence[Run], console: Console) -> None:
    """Download and check what these runs train, or find their programs."""
    printed: dict[str, int] = {}

    def report(name: str, done: int, total: int | None) -> None:
        part = done // _LINE_EVERY_BYTES
        if printed.get(name) != part:
            printed[name] = part
            of = "" if total is None else f" of {total / 1e6:.0f}"
            console.print(f"downloading {name}: {done / 1e6:.0f}{of} MB", highlight=False)

    needs = [run.training_need for run in runs if run.experiment.trains]
    try:
        for package in requirements.packages_to_install(runs):
            say(console, f"installing Debian's package {package.name}")
            requirements.install_package(package)
        prerequisites.prepare(needs, report)
        others = [run for run in runs if not run.experiment.trains]
        of_scripts = {data.name: data for run in others for _, data in requirements.data_of(run)}
        for name, data in of_scripts.items():
            data.prepare(None, functools.partial(report, name))
            data.load(None)  # which says what is wrong with its files
        for run in others:
            programs = run.config()["workload"]["programs"]
            if missing := requirements.missing_program(programs, run.folder):
                raise InputError(f"workload.programs: {missing}")
    except InputError as error:
        raise InputError(f"{runs[0].source}: {error}") from error


def _verdict(results: Path, run: Run) -> str:
    """Return a run's verdict of an earlier command; empty where it has not been begun."""
    place = runner.directory_of(results, run)
    return place.verdict() or ("interrupted" if place.partial.exists() else "")


def _store_plan(
    options: Execution, chosen: Chosen, verdicts: Counter[str], console: Console
) -> None:
    """Store the plan, and say what becomes of runs that earlier commands have begun."""
    runner.require_space(chosen.results, chosen.runs[0])
    if options.anew:
        for run in chosen.runs:
            runner.directory_of(chosen.results, run).set_aside()
    try:
        selections = [selection.stored() for selection in chosen.selections]
        remarks = planning.extend(chosen.results, chosen.runs, selections)
    except OSError as error:
        raise InputError(f"{error.filename or chosen.results}: {error.strerror}") from None
    begun = [f"{count} {verdict}" for verdict, count in verdicts.items() if verdict]
    follows = "goes on with the others" if verdicts["ok"] else "goes on"
    if verdicts["ok"] == len(chosen.runs):
        follows = "nothing is left to do"
    if verdicts["ok"]:
        follows += "; --anew executes what is ok again"
    if options.anew:
        follows = "all are executed anew; what was there is kept as an attempt"
    standing = f"{chosen.folder}: of {len(chosen.runs)} runs {', '.join(begun)}: {follows}"
    for remark in [standing, *remarks] if begun else remarks:
        say(console, remark)


def _one_by_one(chosen: Chosen, capture: list[str], retries: int, progress: RunProgress) -> None:
    for run in chosen.runs:
        runner.require_space(chosen.results, run)
        record = progress.begin(run.label)
        tries = runner.attempts(chosen.results, run, record, capture=capture, retries=retries)
        for number, outcome in enumerate(tries, start=1):
            if outcome.may_differ and number <= retries:
                progress.again(run.label, outcome, number, retries)
        progress.end(outcome)


def _share_out(chosen: Chosen, scheduler: Scheduler, progress: RunProgress) -> None:
    """Have a scheduler's workers execute what is not ok; results come here as blocks end."""
    left = []
    for run in chosen.runs:
        if _verdict(chosen.results, run) == "ok":
            path = runner.directory_of(chosen.results, run).path
            progress.end(Outcome(run, path, "ok", "", executed=False))
        else:
            left.append(run)
    lost = scheduler.share_out(blocks(left), chosen.results, end=progress.end, say=progress.say)
    for run in lost:
        path = runner.directory_of(chosen.results, run).path
        progress.end(Outcome(run, path, "failed", "lost with its workers", executed=True))


def _captures(outcomes: Sequence[Outcome]) -> list[str]:
    return [
        f"capture: {outcome.directory / 'pcap' / capture['file']}"
        + " (not whole: manifest.json says why)" * any(capture[flaw] for flaw in _FLAWS)
        for outcome in outcomes
        if outcome.executed
        for capture in run_directory.read_or_empty(outcome.directory / "manifest.json").get(
            "captures", []
        )
    ]


class RunProgress:
    """Shows the progress of runs that follow each other or go on side by side."""

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
        """Show that a run begins; return what takes its progress records."""
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
        self.say(f"{label}: {outcome.verdict}: {outcome.reason}; retry {number} of {retries}")
        self.begin(label, "starting again")

    def end(self, outcome: Outcome) -> None:
        label = outcome.run.label
        self._under_way.pop(label, None)
        self.outcomes[outcome.run.key] = outcome
        line = f"[{len(self.outcomes)}/{self._total}] {label}: {outcome.verdict}"
        if not outcome.executed:
            line += " (done before)"
        if outcome.reason:
            line += f": {outcome.reason}"
        elif self._bar is None and outcome.executed and len(self.outcomes) < self._total:
            line += f", {self._left()}"
        self.say(line)
        self._update("")

    def say(self, line: str) -> None:
        self._line_s = time.monotonic()
        say(self._console, line)  # however long: a live display counts the lines

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
        return sum(share for _, share in self._under_way.values())

    def _left(self) -> str:
        """Estimate the time left from the mean of what was executed in this call."""
        share = self._share()
        done = sum(outcome.executed for outcome in self.outcomes.values()) + share
        if done < 0.2:
            return ""
        mean_s = (time.monotonic() - self._began_s) / done
        left_s = mean_s * (self._total - len(self.outcomes) - share)
        return f"about {left_s / 60:.0f} min left" if left_s > 90 else f"about {left_s:.0f} s left"


@contextmanager
def progress_shown(console: Console, total: int) -> Iterator[RunProgress]:
    """Show the progress of so many runs: a bar on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield RunProgress(console, None, total)
        return
    share, left = TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.fields[left]}")
    columns = (TextColumn("{task.description}"), BarColumn(), share, TimeElapsedColumn(), left)
    with Progress(*columns, console=console, transient=True) as bar:
        yield RunProgress(bar.console, bar, total)
