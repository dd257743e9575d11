"""`./lab bench`: the transport beside others, and what learning rate or loss a training bears."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli.options import Selection, grouped, output_file

app = typer.Typer(no_args_is_help=True, help="Measure the transport, or what a training bears.")
_LAYERS_SEEDS = 5


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Options that select cases, and the file of their records."""

    json_file: Annotated[Path | None, output_file("--json", help="write records here")] = None
    quick: Annotated[bool, typer.Option("--quick", help="a few cases, under a minute")] = False
    cases: Annotated[
        str, typer.Option("--cases", metavar="GLOB", help="only cases whose name matches")
    ] = "*"


@app.command(epilog="Example: ./lab bench transport --quick --json bench.json")
@grouped
def transport(measurement: Measurement) -> None:
    """Measure the transport beside kernel TCP and Gloo."""
    _measure(measurement)


@app.command(epilog="Example: ./lab bench peer ~/dblp-authors --json peer.json")
@grouped
def peer(
    checkout: Annotated[Path, typer.Argument(help="the folder of the other implementation")],
    measurement: Measurement,
    adapter: Annotated[
        str | None,
        typer.Option(
            "--adapter", help="what drives it: dblp-authors, dblp-authors-nodelay, or ./FILE.py"
        ),
    ] = None,
) -> None:
    """Measure another implementation beside ours and kernel TCP."""
    from testbed.bench import peer as peers

    _measure(measurement, peers.named(adapter or peers.DEFAULT, checkout))


def _measure(measurement: Measurement, peer: Any = None) -> None:
    from testbed.bench import cases, transport

    other = peer.name if peer else None
    chosen = cases.Selection(pattern=measurement.cases, quick=measurement.quick, other=other)
    if not transport.run(chosen, json_file=measurement.json_file, peer=peer):
        raise typer.Exit(1)


@app.command(epilog="Example: ./lab bench rates dblp-calm --json rates.json")
@grouped
def rates(
    selection: Selection,
    json_file: Annotated[
        Path | None, output_file("--json", help="write records here, a table beside them")
    ] = None,
) -> None:
    """Choose each arm's learning rate on a validation part, in virtual time."""
    from testbed.bench import rates

    seeds = range(rates.SEEDS[0], rates.SEEDS[0] + (selection.seeds or len(rates.SEEDS)))
    rates.run(_with_seeds(selection, seeds).loaded(), json_file=json_file)


@app.command(epilog="Example: ./lab bench layers dblp-calm --out layers.yaml")
@grouped
def layers(
    selection: Selection,
    margin: Annotated[
        float,
        typer.Option(
            min=0, help="accuracy, or logarithm of perplexity, that loss may cost: 0.01 is a point"
        ),
    ] = 0.01,
    file: Annotated[
        Path | None, output_file("--out", help="write the profile here, as YAML")
    ] = None,
) -> None:
    """Measure how much loss each tensor of a training bears: bounds for the protocol plot."""
    from testbed.bench import layers, rates

    first, count = rates.SEEDS[0], selection.seeds or _LAYERS_SEEDS
    chosen = _with_seeds(selection, range(first, first + count))
    layers.run(chosen.loaded(), margin=margin, file=file)


def _with_seeds(selection: Selection, seeds: Iterable[int]) -> Selection:
    settings = [*(selection.settings or ()), f"seeds={list(seeds)}"]
    return dataclasses.replace(selection, settings=settings, seeds=None)
