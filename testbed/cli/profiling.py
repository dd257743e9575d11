"""The verb `profile-layers`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import Selection, grouped

EXAMPLE = "Example: ./lab profile-layers rivals-rtt --out layers.yaml"
_FIRST_SEED = 1001  # that no experiment of the lab uses, as those of `tune`
_SEEDS = 5


@grouped
def profile_layers(
    selection: Selection,
    margin: Annotated[
        float,
        typer.Option(
            min=0, help="accuracy, or logarithm of perplexity, that loss may cost: 0.01 is a point"
        ),
    ] = 0.01,
    file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="write the profile here, as YAML")
    ] = None,
) -> None:
    """Measure how much loss each tensor of a training bears: bounds for the protocol plot."""
    from testbed.bench.layers import console

    seeds = [_FIRST_SEED + number for number in range(selection.seeds or _SEEDS)]
    settings = [*(selection.settings or ()), f"seeds={seeds}"]
    chosen = dataclasses.replace(selection, settings=settings, seeds=None)
    console.run(chosen.loaded(), margin=margin, file=file)
