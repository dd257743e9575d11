"""The verbs of `./lab`: each reads its input, calls one function and prints the result."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from testbed.cli import benchmarks
from testbed.cli.options import (
    AsJson,
    Execution,
    LabExecution,
    Out,
    Selection,
    Sweep,
    What,
    grouped,
    output_file,
)
from testbed.cli.terminal import console, say, show_table
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import RESULTS

if TYPE_CHECKING:
    from analysis.comparison import Compared
    from testbed.verdict.explanation import GateFinding

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_BEGIN, _RUN, _READ, _LAB = "Begin", "Run experiments", "Read results", "The lab itself"


def _verb(group: str, example: str, name: str | None = None, **settings: Any) -> Any:
    """A verb in a group of `--help`, with an example below its own help."""
    return app.command(name, rich_help_panel=group, epilog=f"Example: ./lab {example}", **settings)


def _print_version(asked: bool) -> None:
    if not asked:
        return
    from testbed.run import manifest
    from testbed.shared.version import version

    print(f"lab {version()} ({manifest.commit() or 'commit unknown'})")
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="print the version and commit"
        ),
    ] = False,
    packages: Annotated[
        bool,
        typer.Option("--packages", help="alone, as root: only install what is needed of Debian's"),
    ] = False,
) -> None:
    """A reproducible lab for bounded-loss gradient transport."""
    if packages:
        raise InputError("--packages: valid alone, without a verb")


@_verb(_BEGIN, "check --json")
def check(as_json: AsJson = False) -> None:
    """Try what this machine and user can do, what that enables, and how to get the rest."""
    from testbed.machine import capabilities, steadiness

    probed = capabilities.probe()
    if as_json:
        document = {name: dataclasses.asdict(capability) for name, capability in probed.items()}
        print(json.dumps(document, indent=2))
    else:
        screen = console()
        capabilities.show(probed, screen)
        screen.print(f"now: {steadiness.watch().sentence()}", highlight=False)
    if capabilities.missing(probed, capabilities.QUICK):
        raise typer.Exit(2)


@_verb(_BEGIN, "list", name="list")
def list_experiments() -> None:
    """List the experiments that come with the lab."""
    from testbed import experiment

    shipped = [experiment.summary(name) for name in experiment.names()]
    rows = ((e.name, str(e.runs), ", ".join(e.profiles), e.description) for e in shipped)
    show_table(console(), ("experiment", "runs", "profiles", "what it shows"), rows)


@_verb(_BEGIN, "plan quick --arms dblp,fixed-low --seeds 5")
@grouped
def plan(
    options: Sweep,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="the runs of ./lab simulate, and how long they take")
    ] = False,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="print the experiment with all options and defaults")
    ] = False,
) -> None:
    """Print an experiment's runs, their time, numbers and topologies; execute nothing."""
    from testbed.cli import plan

    chosen = plan.choose(options, simulated=simulated)
    if as_yaml:
        plan.show_yaml(chosen)
    else:
        plan.show(chosen, console())


@_verb(_BEGIN, "new topology my_topology    or, for a cluster: ./lab new keys DIR server worker-1")
def new(
    kind: Annotated[
        str,
        typer.Argument(
            help="experiment, topology, impairment, congestion-control, tolerance, repair, order, "
            "filling, detector, model, dataset or keys"
        ),
    ],
    name: Annotated[
        str, typer.Argument(help="the file's name without its ending; of keys their folder")
    ],
    sides: Annotated[
        list[str] | None,
        typer.Argument(metavar="SIDE...", help="of keys: server, and each worker"),
    ] = None,
) -> None:
    """Write a commented file that runs, to begin something of your own; or keys for a cluster."""
    from testbed.cli import maintenance
    from testbed.transport.net import keys

    if kind == "keys":
        if not sides:
            raise InputError("new keys: SIDE... is missing; for example: ./lab new keys DIR server")
        keys.show(Path(name), sides)
    elif sides:
        raise InputError(f"new: one word too many: {sides[0]}")
    else:
        print("\n".join(maintenance.write_new(kind, name)))


@_verb(_BEGIN, "schema > experiment.schema.json")
def schema() -> None:
    """Print the JSON schema of an experiment file, with which an editor completes and checks it."""
    from testbed.experiment import json_schema

    print(json.dumps(json_schema.build(), indent=1))


@_verb(_BEGIN, "docs")
def docs(
    folder: Annotated[
        Path | None, typer.Option("--build", metavar="DIR", help="into this folder; site/")
    ] = None,
) -> None:
    """Build the documentation as a site, which needs no network to read."""
    from testbed.cli import maintenance

    print(f"documentation: {maintenance.build_site(folder or maintenance.SITE)}")


@_verb(_RUN, "run quick --congestion-control bbr --arms tcp-cubic --out /tmp/x")
@grouped
def run(options: LabExecution) -> None:
    """Execute what of an experiment is not ok yet, print its main table, write its report."""
    from testbed.cli import execution

    if not execution.run(options):
        raise typer.Exit(1)


@_verb(_RUN, "simulate burst-latency --arms dblp,fixed-low --out /tmp/x")
@grouped
def simulate(options: Execution) -> None:
    """Execute an experiment in virtual time, without a network; otherwise as run."""
    from testbed.cli import execution

    if not execution.run(options, simulated=True):
        raise typer.Exit(1)


@_verb(_RUN, "replay D21 D22    or, what an hour allows: ./lab replay --within 60m")
def replay(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="CLAIM...", help="ids of claims; none lists them")
    ] = None,
    within: Annotated[
        str | None,
        typer.Option("--within", metavar="TIME", help="run what so much time allows: 60m, 2h"),
    ] = None,
    kept: Annotated[
        bool, typer.Option("--kept", help="alone: print what the stored results say")
    ] = False,
    out: Out = RESULTS,
) -> None:
    """List what papers claim, or run what tests it, and write a page of verdicts."""
    from testbed.cli import replay

    if kept and (ids or within):
        raise InputError("--kept: valid alone")
    if kept:
        replay.show_kept(console())
    elif not ids and within is None:
        replay.show(console())
    elif not replay.run(replay.chosen(ids or (), within), out, console()):
        raise typer.Exit(1)


@_verb(_RUN, "watch    (in a second terminal, while ./lab run goes on)")
def watch(what: What = None, out: Out = RESULTS) -> None:
    """Show the run in progress: rounds, queues, drops, windows, processes; then the next one."""
    from testbed.cli import places
    from testbed.watch import follow

    place = places.find(what, out)
    place.require()
    runs = follow.Selection(results=place.results, experiment=place.experiment, key=place.key)
    try:
        follow.watch(runs, console(highlight=False))
    except KeyboardInterrupt:
        sys.exit(130)  # without the word that a run was interrupted: it goes on


@_verb(_RUN, "shell quick    (then: worker-1 ping server)")
@grouped
def shell(selection: Selection) -> None:
    """Open Mininet's prompt inside an experiment's network, without training."""
    from testbed.cli import plan
    from testbed.machine import capabilities
    from testbed.scripting import inside

    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError("shell: needs a terminal; valid: a script, docs/how-to/lab-in-python.md")
    runs = plan.choose(Sweep(**vars(selection))).selections[0].loaded()
    capabilities.require()
    raise typer.Exit(inside.open_prompt(runs[0].config()))


@_verb(_READ, "report quick    or, to publish it: ./lab report quick --format zip")
def report(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="WHAT...", help="experiments' names, YAML files, folders; all"),
    ] = None,
    out: Out = RESULTS,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="csv|latex|zip",
            help="print the main table so; zip: pack results, from which its tables come, into "
            "NAME.zip",
        ),
    ] = None,
    output: Annotated[
        Path | None, output_file("--output", "-o", help="what --format writes")
    ] = None,
    readme: Annotated[
        bool,
        typer.Option("--readme", help="store them in experiments/results/, fill pages' tables"),
    ] = False,
) -> None:
    """Write the reports of finished runs again, from their directories alone."""
    from testbed.cli import places

    if readme and form:
        raise InputError("--format: valid without --readme")
    names: list[str] | list[None] = what or [None]
    chosen = list(dict.fromkeys(places.find(name, out) for name in names))
    for place in chosen:  # nothing is written where one name is wrong
        place.require()
    from testbed.cli import report_view  # imports what draws figures, which takes a second

    if form is not None:
        report_view.export(chosen, form, output)
        return
    if output is not None:
        raise InputError("--output: valid with --format")
    for place in chosen:
        report_view.write(place)
    for place in chosen if readme else ():
        report_view.keep(place)


_Result = Annotated[
    str,
    typer.Argument(
        help="an experiment's name, its YAML file, a folder of results or of kept ones; or a run"
    ),
]


@_verb(_READ, "compare quick experiments/results/quick    or two runs, by their keys")
def compare(
    first: _Result,
    second: _Result,
    out: Out = RESULTS,
    json_file: Annotated[
        Path | None, output_file("--json", help="write all metrics to this file")
    ] = None,
) -> None:
    """Compare two results of an experiment, such as a lab's and simulated ones, or two runs."""
    from testbed.cli import places

    one, two = places.result(first, out), places.result(second, out)
    if (are_runs := places.is_run(one)) != places.is_run(two):
        raise InputError(f"{one} and {two}: valid: two results of an experiment, or two runs")
    from analysis import comparison  # imports what reads results, which takes a second
    from analysis.data.metrics import in_table

    compare_all = comparison.compare_runs if are_runs else comparison.compare
    try:
        first_side, second_side = map(comparison.evidence, (one, two))
        for folder, side in ((one, first_side), (two, second_side)):
            if not side.ok_runs and not are_runs:
                raise InputError(f"{folder}: no run is ok; ./lab explain {folder} says why")
        compared = compare_all(first_side, second_side)
    except ValueError as error:
        raise InputError(str(error)) from None
    if json_file is not None:
        document = comparison.document(str(one), str(two), compared)
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    headings = ("arm", "point", "metric", "first", "second", "second / first", "pairs")
    shown = in_table("compared")  # `--json` has all
    rows = (_compared_row(metric) for metric in compared if metric.metric in shown)
    show_table(console(), headings, rows)


def _compared_row(compared: Compared) -> list[str]:
    from analysis.data.metrics import describe

    point = ", ".join(f"{name} {value}" for name, value in compared.factors.items())
    metric, ratio = describe(compared.metric), compared.ratio
    unit = f" ({metric.unit})" if metric.unit in ("s", "bytes") else ""
    shown = "-" if ratio.value is None else f"{ratio.value:.3f}"
    if ratio.low is not None and ratio.high is not None:
        shown += f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    numbers = [f"{compared.first:.5g}", f"{compared.second:.5g}", shown, str(ratio.n)]
    return [compared.arm, point, metric.label + unit, *numbers]


@_verb(_READ, "explain    or, of one run: ./lab explain dblp-s1-2c88bfb744")
def explain(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="a run's key, the beginning of one, its folder, or an experiment's latest",
        ),
    ] = None,
    out: Out = RESULTS,
) -> None:
    """Explain a run's verdict: what was measured, the evidence, likely causes, what to do."""
    from testbed.cli import places

    show_explanation(places.run(run, out), console())


def show_explanation(directory: Path, console: Console) -> None:
    from testbed.verdict import explanation, gates

    run = explanation.explain(directory)
    say(console, f"{directory.name}: {run.verdict}")
    say(console, f"  {explanation.MEANINGS[run.verdict]}")
    by_gates = gates.reasons([gates.Gate(**gate.record) for gate in run.gates])  # shown below
    facts = {"usual cause": run.causes, "what to do": run.remedy, "directory": str(directory)}
    _facts(console, {"reason": run.reason.removeprefix(by_gates).removeprefix("; ")} | facts)
    for gate in run.gates:
        _show_gate(console, gate, directory)
    if run.others:
        say(console, "")
        headings = ("other gates", "outcome", "limit", "what is measured")
        show_table(console, headings, map(_other_gate, run.others))
    if run.log_end:
        say(console, f"\n{directory / run.log} ends:")
        for line in run.log_end:
            say(console, f"  {line}")


def _show_gate(console: Console, gate: GateFinding, directory: Path) -> None:
    record, about = gate.record, gate.about
    value = f"{record['value']:.4g}" if record["value"] is not None else "not measured"
    decides = record["decides"]
    outcome = record["outcome"] + ("" if decides else ", but waived, so it does not decide")
    say(console, f"\ngate {record['key']} {outcome}: {record['name']}")
    facts = {
        "value": f"{value}; limit {record['limit']:g}",
        "where": record["where"],
        "note": record["note"],
        "waived": record["waived"],
        "measured": about.measured,
        "evidence": f"{directory}/{about.evidence}",
        "usual cause": about.causes if decides and record["outcome"] == "failed" else "",
        "what to do": about.remedy if decides else "",
    }
    _facts(console, facts)


def _other_gate(gate: GateFinding) -> tuple[str, ...]:
    record, value = gate.record, gate.record["value"]
    waived = record["waived"] and f"waived: {record['waived']}"
    words = (record["name"], waived, record["note"] if value is None else "")
    outcome = record["outcome"] + ("" if value is None else f": {value:.4g}")
    remarks = "; ".join(filter(None, words))
    return record["key"], outcome, f"{record['limit']:g}", remarks


def _facts(console: Console, facts: dict[str, str]) -> None:
    for name, words in facts.items():
        if words:
            say(console, f"  {name + ':':13} {words}")


@_verb(_READ, "capture --read runs/quick/RUN/pcap/server.pcap --transfer 28")
def capture(
    read: Annotated[Path, typer.Option("--read", metavar="FILE", help="the capture of a run")],
    transfer: Annotated[
        int | None, typer.Option("--transfer", min=0, help="only this one: 2 r is round r's gather")
    ] = None,
) -> None:
    """Print a capture of run --pcap in short rows: control messages, and the data between them."""
    from testbed.capture import reading

    reading.show(read, transfer=transfer)


@_verb(_READ, "verify-results")
def verify_results(
    write: Annotated[
        bool,
        typer.Option("--write", help="write anew what differs, from the kept rows; then verify"),
    ] = False,
) -> None:
    """Recompute all kept tables, and the numbers in pages, from the kept rows; say what differs."""
    from testbed.cli import report_view

    if not report_view.verify(write=write):
        raise typer.Exit(1)


app.add_typer(benchmarks.app, name="bench", rich_help_panel=_LAB)


@_verb(
    _LAB,
    "test -k transport",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def test(context: typer.Context) -> None:
    """Run the linters and the tests, with --long also the longest; other arguments go to pytest."""
    from testbed.cli import maintenance
    from testbed.lab.kernel import privileges

    with privileges.regained():
        status = maintenance.test(context.args)
    raise typer.Exit(status)


@_verb(_LAB, "clean --yes    or, all of one experiment: ./lab clean quick")
def clean(
    what: What = None,
    out: Out = RESULTS,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Show, then remove, what runs and labs left behind; or all results of one experiment."""
    from testbed.cli import maintenance

    if not maintenance.clean(what, out, yes=yes):
        raise typer.Exit(1)
