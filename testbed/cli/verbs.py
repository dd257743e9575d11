"""The verbs of `./lab`: each reads its input, calls one function and prints the result."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli import benchmarks, comparing, exporting, profiling, reporting
from testbed.cli.benchmarks import Benchmark
from testbed.cli.options import AsJson, Execution, Out, Pcap, Selection, Sweep, What, grouped
from testbed.cli.terminal import console, say
from testbed.shared.run_directory import RESULTS
from testbed.shared.yaml_input import InputError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if not wanted:
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
) -> None:
    """A reproducible lab for bounded-loss gradient transport."""


@app.command(epilog="Example: ./lab check --deep")
def check(
    as_json: AsJson = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="find the highest link rate that 4 hosts hold (a minute)")
    ] = False,
) -> None:
    """Try what this machine and user can do, what that enables, and how to get the rest."""
    from testbed.machine import capabilities, highest_rate, steadiness

    screen = console(stderr=as_json)
    found = capabilities.probe()
    document: dict[str, Any] = {name: each.as_json() for name, each in found.items()}
    if not as_json:
        capabilities.show(found, screen)
        screen.print(f"now: {steadiness.watch().sentence()}", highlight=False)
    if deep and not capabilities.missing(found):
        kernel = found["switch-kernel"].available
        for key, datapath in highest_rate.searches(kernel=kernel).items():
            highest = highest_rate.search(highest_rate.printer(screen), datapath)
            document[key] = highest.as_json()
            screen.print(highest.sentence())
    if as_json:
        print(json.dumps(document, indent=2))
    if capabilities.missing(found, capabilities.QUICK):
        raise typer.Exit(2)


@app.command("list", epilog="Example: ./lab list")
def list_experiments(as_json: AsJson = False) -> None:
    """List the experiments that come with the lab."""
    from testbed.cli import shipped_view

    shipped_view.show_shipped(console(), as_json=as_json)


@app.command(epilog="Example: ./lab plan quick --arms dblp,fixed-low --seeds 5")
@grouped
def plan(
    selection: Sweep,
    out: Out = RESULTS,
    pcap: Pcap = None,
    as_json: AsJson = False,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="the runs of ./lab simulate, and how long they take")
    ] = False,
    as_yaml: Annotated[
        bool, typer.Option("--yaml", help="print the experiment with all options and defaults")
    ] = False,
) -> None:
    """Print an experiment's runs, numbers and topologies; execute and write nothing."""
    from testbed.cli import choosing, execution, plan_view, progress
    from testbed.run import planning

    chosen, screen = choosing.chosen(selection, out, simulated=simulated), console(stderr=as_json)
    if as_yaml:
        plan_view.show_yaml(chosen.selections, chosen.results)
        return
    remarks = execution.not_of_a_lab(chosen, selection, pcap) if simulated else []
    remarks += planning.check(chosen.results, chosen.planned)
    execution.hosts_to_capture(chosen.runs, pcap)
    progress.refuse_short_shares(chosen.runs)
    if as_json:
        print(json.dumps({"runs": plan_view.records(chosen.results, chosen.runs)}, indent=1))
    else:
        plan_view.show_runs(chosen.results, chosen.runs, screen)
        if simulated:
            at_once = execution.simulated_at_once(chosen.runs)
            plan_view.show_total(chosen.results, chosen.runs, screen, at_once=at_once)
        else:
            plan_view.show_unsupported(chosen.runs, screen)
        plan_view.show_rounds(chosen.runs, screen)
        plan_view.show_numbers(chosen.selections, chosen.results, screen)
        plan_view.show_topologies(chosen.runs, screen)
    for remark in remarks:
        say(screen, remark)


@app.command(
    epilog="Example: ./lab run quick --congestion-control bbr --arms tcp-cubic --out /tmp/x"
)
@grouped
def run(selection: Sweep, options: Execution) -> None:
    """Execute an experiment, print its main table, write its report."""
    from testbed.cli import execution

    if not execution.run(selection, options):
        raise typer.Exit(1)


@app.command(epilog="Example: ./lab resume quick")
@grouped
def resume(selection: Sweep, options: Execution) -> None:
    """Execute what of an experiment is not done yet, or did not end well."""
    from testbed.cli import execution

    if not execution.resume(selection, options):
        raise typer.Exit(1)


@app.command(epilog="Example: ./lab simulate burst-latency --arms dblp,fixed-low --out /tmp/x")
@grouped
def simulate(selection: Sweep, options: Execution) -> None:
    """Execute an experiment in virtual time, without a network; otherwise as run."""
    from testbed.cli import execution

    if not execution.simulate(selection, options):
        raise typer.Exit(1)


@app.command(epilog="Example: ./lab watch    (in a second terminal, while ./lab run goes on)")
def watch(
    what: What = None,
    out: Out = RESULTS,
    run: Annotated[str | None, typer.Option("--run", help="only the run with this key")] = None,
) -> None:
    """Show the run in progress: rounds, queues, drops, windows, processes; then the next one."""
    from testbed.cli import places
    from testbed.watch import follow

    place = places.find(what, out)
    if out == RESULTS and (what is None or not place.folder.is_dir()):
        # Wherever it is: the command that runs it may have another --out.
        wanted = follow.Wanted(experiment=place.experiment, key=run)
    else:
        wanted = follow.Wanted(
            results=place.results, experiment=place.experiment, key=run or place.key
        )
    try:
        follow.watch(wanted, console(highlight=False))
    except KeyboardInterrupt:
        sys.exit(130)  # without the word that a run was interrupted: it goes on


app.command(epilog=reporting.EXAMPLE)(reporting.report)


app.command(epilog=comparing.EXAMPLE)(comparing.compare)


app.command(epilog=exporting.EXAMPLE)(exporting.export)


@app.command(epilog="Example: ./lab verify-results")
def verify_results(
    write: Annotated[
        bool,
        typer.Option("--write", help="write anew what differs, from the kept rows; then verify"),
    ] = False,
) -> None:
    """Recompute all kept tables, and the numbers in pages, from the kept rows; say what differs."""
    from testbed.cli import verification_view

    if not verification_view.verify(write=write):
        raise typer.Exit(1)


@app.command(epilog="Example: ./lab explain    or, of one run: ./lab explain dblp-s1-648d7b96bc")
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
    from testbed.cli import explain_view, places

    explain_view.show(places.run(run, out, rather_not_ok=True), console())


@app.command(epilog="Example: ./lab shell quick    (then: worker-1 ping server)")
@grouped
def shell(selection: Selection) -> None:
    """Open Mininet's prompt inside an experiment's network, without training."""
    from testbed.cli import choosing
    from testbed.machine import capabilities
    from testbed.prompt import session

    runs = choosing.chosen(selection, RESULTS).selections[0].loaded()
    capabilities.require()
    raise typer.Exit(session.open_prompt(runs[0].config()))


@app.command(epilog="Example: ./lab dissect runs/quick/RUN/pcap/server.pcap --transfer 20")
def dissect(
    capture: Annotated[
        str, typer.Argument(metavar="WHAT", help="a capture, or whose: a run's folder, a name")
    ],
    transfer: Annotated[
        int | None, typer.Option("--transfer", min=0, help="tell this transfer in detail")
    ] = None,
    out: Out = RESULTS,
    as_json: AsJson = False,
) -> None:
    """Tell from a capture what transfers did: passes, holes, Stop, strangers' datagrams."""
    from testbed.capture import rendering
    from testbed.capture.dissect import dissect as read
    from testbed.cli import places
    from testbed.shared import sizes

    path = places.capture(capture, out)
    if path.is_file() and (size_bytes := path.stat().st_size) > 20_000_000:
        say(console(stderr=True), f"{path}: reading {sizes.in_words(size_bytes)}")
    found = read(path)
    if transfer is not None:
        found.require(transfer)
    if as_json:
        print(json.dumps(rendering.as_json(found, transfer), indent=1))
    else:
        rendering.show(found, transfer, rendering.console())
    if found.problem is not None:
        raise InputError(f"{path}: {found.problem}; told is what comes before")


@app.command(epilog="Example: ./lab bench transport --quick --json bench.json")
@grouped
def bench(benchmark: Benchmark) -> None:
    """Measure the transport beside kernel TCP, Gloo or others; or how much loss training bears."""
    if not benchmarks.run(benchmark):
        raise typer.Exit(1)


@app.command(epilog="Example: ./lab tune accuracy --json accuracy.json")
@grouped
def tune(
    selection: Selection,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write records here, a table beside them")
    ] = None,
) -> None:
    """Choose each arm's learning rate on a validation part, in virtual time."""
    benchmarks.tune(selection, json_file)


app.command(epilog=profiling.EXAMPLE)(profiling.profile_layers)


@app.command(epilog="Example: LAB_TORCH=0 ./lab setup    (or --packages alone, as root)")
def setup(
    packages: Annotated[
        bool, typer.Option("--packages", help="only the system's packages, not .venv")
    ] = False,
) -> None:
    """Set up what is missing, and do nothing else; every other verb does so by itself."""
    # The entry script has done it, and with --packages has not come here.
    what = "the system's packages are" if packages else "packages and .venv are"
    print(f"lab: {what} ready")


@app.command(epilog="Example: ./lab docs")
def docs(
    folder: Annotated[
        Path | None, typer.Option("--build", metavar="DIR", help="only build it, into this folder")
    ] = None,
) -> None:
    """Build the documentation, which needs no network to read, and open it in a browser."""
    from testbed.cli import documentation_site

    page = documentation_site.build(folder or documentation_site.FOLDER)
    if folder is not None or not documentation_site.open_page(page):
        print(f"documentation: {page}")


@app.command(epilog="Example: ./lab new topology my_topology")
def new(
    kind: Annotated[
        str,
        typer.Argument(
            help="experiment, topology, impairment, congestion-control, tolerance, repair, order, "
            "filling, detector, model or dataset"
        ),
    ],
    name: Annotated[str, typer.Argument(help="the file's name without its ending")],
) -> None:
    """Write a commented file that runs, to begin something of your own; say how to try it."""
    from testbed.cli import new_file

    print("\n".join(new_file.write(kind, name)))


@app.command(epilog="Example: ./lab keys ~/dblp-keys server worker-1 worker-2")
def keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="folder for the files")],
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="the sides: server, and each worker")
    ],
) -> None:
    """Make a key and a certificate for each side of a transport that leaves this machine."""
    from testbed.transport.net import keys as maker

    maker.show(directory, names)


@app.command(epilog="Example: ./lab schema > experiment.schema.json")
def schema() -> None:
    """Print the JSON schema of an experiment file, with which an editor completes and checks it."""
    from testbed.experiment import json_schema

    print(json.dumps(json_schema.build(), indent=1))


@app.command(
    epilog="Example: ./lab test -k transport",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def test(context: typer.Context) -> None:
    """Run the linters and the tests, with --long also the longest; other arguments go to pytest."""
    from testbed.cli import self_test
    from testbed.lab.kernel import privileges

    with privileges.taken_up():
        status = self_test.run(context.args)
    raise typer.Exit(status)


@app.command(epilog="Example: ./lab clean --yes    or, all of one experiment: ./lab clean quick")
def clean(
    what: What = None,
    out: Out = RESULTS,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Show, then remove, what runs and labs left behind; or all results of one experiment."""
    from testbed.cli import removal

    if not removal.clean(what, out, removal.asking(yes)):
        raise typer.Exit(1)
