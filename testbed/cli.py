"""The verbs of `./lab`, nothing else: read the input, call one function, print the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from testbed.yaml_input import InputError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A reproducible lab for bounded-loss gradient transport.",
)

Name = Annotated[str, typer.Argument(help="an experiment's name, or a YAML file")]
Out = Annotated[Path, typer.Option("--out", help="folder for all results")]
Arms = Annotated[str, typer.Option("--arms", help="only these arms: a,b")]
Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="use this many seeds")]
Control = Annotated[
    str | None,
    typer.Option("--congestion-control", help="swap every arm's congestion control"),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="replace a value: key.path=value (repeatable)")
]
Pcap = Annotated[
    str | None,
    typer.Option(
        "--pcap",
        metavar="[HOSTS]",
        help="record these hosts' links (worker-1,server; without HOSTS: server) into pcap/",
    ),
]
RESULTS = Path("runs")


@app.command(epilog="Example: ./lab check --json")
def check(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Try what this machine and user can do, and what that enables."""
    from testbed.lab import capabilities

    found = capabilities.probe()
    if as_json:
        print(json.dumps({name: each.as_json() for name, each in found.items()}, indent=2))
    else:
        table = Table("capability", "here", "for", "why", box=None)
        for name, each in found.items():
            mark = "[green]yes[/]" if each.available else "[yellow]no[/]"
            table.add_row(name, mark, each.enables, each.reason)
        Console().print(table)
    if capabilities.missing(found):
        raise typer.Exit(2)


@app.command("list", epilog="Example: ./lab list")
def list_experiments() -> None:
    """List the experiments that come with the lab."""
    from testbed import experiment

    table = Table("experiment", "runs", "what it shows", box=None)
    for name in experiment.names():
        runs = experiment.load(name)
        table.add_row(name, str(len(runs)), runs[0].experiment.description)
    Console().print(table)


@app.command(epilog="Example: ./lab plan quick --arms dblp,fixed-low --seeds 5")
def plan(
    name: Name,
    out: Out = RESULTS,
    arms: Arms = "",
    seeds: Seeds = None,
    congestion_control: Control = None,
    settings: Settings = None,
) -> None:
    """Print the runs that an experiment expands to, and which are done; execute nothing."""
    from testbed import runner

    runs = _runs(name, arms, seeds, congestion_control, settings)
    table = Table("run", "arm", "seed", "factors", "verdict", box=None)
    for run in runs:
        verdict = runner.directory_of(out, run).verdict() or "to do"
        table.add_row(run.key, run.arm, str(run.seed), json.dumps(run.factors), verdict)
    Console().print(table)


@app.command(
    epilog="Example: ./lab run quick --congestion-control bbr --arms tcp-cubic --out /tmp/x"
)
def run(
    name: Name,
    out: Out = RESULTS,
    arms: Arms = "",
    seeds: Seeds = None,
    congestion_control: Control = None,
    settings: Settings = None,
    pcap: Pcap = None,
) -> None:
    """Execute an experiment, print its main table, write its report."""
    from testbed import runner

    runs = _runs(name, arms, seeds, congestion_control, settings)
    done = runner.finished(out, runs)
    if done:
        raise InputError(
            f"{out / runs[0].experiment.name}: already holds {len(done)} of these runs; continue "
            f"with './lab resume {name}', or choose another folder with --out DIR"
        )
    _execute(out, runs, _links(runs, pcap))


@app.command(epilog="Example: ./lab resume quick")
def resume(
    name: Name,
    out: Out = RESULTS,
    arms: Arms = "",
    seeds: Seeds = None,
    congestion_control: Control = None,
    settings: Settings = None,
    pcap: Pcap = None,
) -> None:
    """Execute what of an experiment is not done yet, or did not end well."""
    runs = _runs(name, arms, seeds, congestion_control, settings)
    _execute(out, runs, _links(runs, pcap))


@app.command(epilog="Example: ./lab report runs")
def report(
    results: Annotated[Path, typer.Argument(help="folder with results")] = RESULTS,
    experiment: Annotated[
        str | None, typer.Option("--experiment", help="which one, if there are several")
    ] = None,
) -> None:
    """Write the report of finished runs again, from their directories alone."""
    _report(results, experiment)


@app.command(epilog="Example: ./lab shell quick    (then: worker-1 ping server)")
def shell(name: Name, settings: Settings = None) -> None:
    """Open Mininet's prompt inside an experiment's network, without training."""
    from testbed.lab import sandbox

    runs = _runs(name, "", None, None, settings)
    _require_capabilities()
    process = sandbox.start("testbed.shell", json.dumps(runs[0].config()), terminal=True)
    raise typer.Exit(process.wait())


@app.command(epilog="Example: ./lab dissect runs/quick/RUN/pcap/server.pcap --transfer 20")
def dissect(
    capture: Annotated[Path, typer.Argument(metavar="FILE.pcap", help="a capture")],
    transfer: Annotated[
        int | None, typer.Option("--transfer", min=0, help="tell this transfer in detail")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Tell from a capture what transfers did: passes, holes, Stop, strangers' datagrams."""
    from testbed.capture import telling
    from testbed.capture.dissect import dissect as read

    found = read(capture)
    if transfer is not None:
        found.require(transfer)
    if as_json:
        print(json.dumps(telling.as_json(found, transfer), indent=1))
    else:
        telling.tell(found, transfer, telling.console())
    if found.problem is not None:
        raise InputError(f"{capture}: {found.problem}; told is what comes before")


@app.command(epilog="Example: ./lab bench transport --quick --json bench.json")
def bench(
    what: Annotated[str, typer.Argument(help="what to measure: transport")],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write records here, a figure beside them")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a few cases, under a minute")] = False,
    cases: Annotated[
        str, typer.Option("--cases", metavar="GLOB", help="only cases whose name matches")
    ] = "*",
) -> None:
    """Measure the transport beside kernel TCP and Gloo, on private links."""
    from testbed.bench import console

    if what != "transport":
        raise InputError(f"unknown benchmark {what!r}; valid: transport")
    if not console.run(pattern=cases, quick=quick, json_file=json_file):
        raise typer.Exit(1)


@app.command(
    epilog="Example: ./lab test -k transport",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def test(context: typer.Context) -> None:
    """Run the linters and all tests; further arguments go to pytest."""
    from testbed import checks

    raise typer.Exit(checks.run(context.args))


@app.command(epilog="Example: ./lab clean quick --yes")
def clean(
    name: Annotated[str, typer.Argument(help="an experiment's name")],
    out: Out = RESULTS,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Delete the results of one experiment (a lab itself leaves nothing to clean)."""
    import shutil

    folder = out / name
    if "/" in name or not (folder / "plan.json").is_file():
        raise InputError(f"{folder}: holds no experiment's results")
    if not yes:
        typer.confirm(f"Delete {folder}?", abort=True)
    shutil.rmtree(folder)


def _runs(
    name: str,
    arms: str,
    seeds: int | None,
    congestion_control: str | None,
    settings: list[str] | None,
) -> list[Any]:
    from testbed import experiment

    return experiment.load(
        name,
        overrides=settings or (),
        arms=[arm for arm in arms.split(",") if arm],
        seeds=seeds,
        congestion_control=congestion_control,
    )


def _links(runs: list[Any], pcap: str | None) -> list[str]:
    """The hosts whose links are to be recorded."""
    names = [name for name in (pcap or "").split(",") if name]
    valid = [name for run in runs[:1] for name in run.experiment.topology.host_names()]
    for name in names:
        if name not in valid:
            raise InputError(f"--pcap {pcap}: unknown host {name!r}; valid: {', '.join(valid)}")
    return list(dict.fromkeys(names))


def _require_capabilities() -> None:
    from testbed.lab import capabilities

    absent = capabilities.missing(capabilities.probe())
    if absent:
        raise InputError(f"this machine or user cannot run a lab: {'; '.join(absent)}")


def _execute(out: Path, runs: list[Any], capture: list[str]) -> None:
    from testbed import console, runner

    _require_capabilities()
    try:
        runner.write_plan(out, runs)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from None
    outcomes = []
    try:
        with console.shown(Console(), len(runs)) as progress:
            for each in runs:
                progress.begin(each.label)
                outcome = runner.execute(out, each, progress.record, capture=capture)
                progress.end(outcome)
                outcomes.append(outcome)
    finally:
        runner.hand_over(out)
    _report(out, runs[0].experiment.name)
    for line in runner.captures(outcomes):
        print(line)
    runner.hand_over(out)
    if any(outcome.verdict in ("failed", "invalid") for outcome in outcomes):
        raise typer.Exit(1)


def _report(results: Path, experiment: str | None) -> None:
    import analysis
    from analysis.tables import to_text

    try:
        paths = analysis.write_report(results, experiment)
    except ValueError as error:
        raise InputError(str(error)) from None
    console = Console(highlight=False, markup=False, soft_wrap=True)
    width = console.width if console.is_terminal else None
    console.print("", to_text(paths.main_table, width=width), sep="\n")
    console.print(f"report: {paths.index}")
