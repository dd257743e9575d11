"""The benchmarks that `./lab bench` knows, their options, and which option goes with which."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import Selection
from testbed.shared.input_error import InputError

VALID = ("transport", "peer", "factorial")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is measured, and where it is written."""

    what: Annotated[str, typer.Argument(help=f"what: {', '.join(VALID)}")]
    checkout: Annotated[
        Path | None, typer.Argument(help="peer: the folder of another implementation")
    ] = None
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write records here, a figure beside them")
    ] = None
    quick: Annotated[bool, typer.Option("--quick", help="a few cases, under a minute")] = False
    full: Annotated[
        bool, typer.Option("--full", help="transport: also the cases that take long")
    ] = False
    cases: Annotated[
        str, typer.Option("--cases", metavar="GLOB", help="only cases whose name matches")
    ] = "*"
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare", metavar="FILE", help="what changed since this --json was written"
        ),
    ] = None
    adapter: Annotated[
        str | None,
        typer.Option(
            "--adapter",
            help="peer: what drives it: dblp-authors, dblp-authors-nodelay, or ./FILE.py",
        ),
    ] = None


def run(chosen: Benchmark) -> bool:
    """Measure, print and write; returns whether everything could be measured."""
    what = chosen.what
    if what not in VALID:
        raise InputError(f"unknown benchmark {what!r}; valid: {', '.join(VALID)}")
    unfit = {
        "CHECKOUT": chosen.checkout is not None and what != "peer",
        "--adapter": chosen.adapter is not None and what != "peer",
        "--full": chosen.full and what != "transport",
        "--compare": chosen.compare is not None and what == "factorial",
    }
    for option in (each for each, is_unfit in unfit.items() if is_unfit):
        raise InputError(f"{option}: not for the benchmark {what}")
    return _studied(chosen) if what == "factorial" else _measured(chosen)


def _studied(chosen: Benchmark) -> bool:
    from testbed.bench.factorial import console

    console.run(pattern=chosen.cases, quick=chosen.quick, json_file=chosen.json_file)
    return True


def _measured(chosen: Benchmark) -> bool:
    from testbed.bench.peer import registry
    from testbed.bench.transport import console
    from testbed.bench.transport.cases import Selection as Cases
    from testbed.bench.transport.cases import Size

    if chosen.quick and chosen.full:
        raise InputError("--quick and --full: only one of them")
    peer = None
    if chosen.what == "peer":
        if chosen.checkout is None:
            raise InputError("bench peer: CHECKOUT is missing; for example: ./lab bench peer DIR")
        peer = registry.found(chosen.adapter or registry.DEFAULT, chosen.checkout)
    size: Size = "quick" if chosen.quick else "full" if chosen.full else "usual"
    selection = Cases(pattern=chosen.cases, size=size, other=peer.name if peer else None)
    return console.run(selection, json_file=chosen.json_file, compare=chosen.compare, peer=peer)


def tune(selection: Selection, json_file: Path | None) -> None:
    """Choose each arm's learning rate, over the seeds that the rule states."""
    from testbed.bench.tuning import console as tuning
    from testbed.bench.tuning.rule import SEEDS

    seeds = f"seeds={list(SEEDS)}"
    chosen = dataclasses.replace(selection, settings=[*(selection.settings or ()), seeds])
    tuning.run(chosen.loaded(), json_file=json_file)
