"""What `./lab plan` says of an experiment's dimensionless numbers; what its profile keeps."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from testbed.experiment import REFERENCE_PROFILE, Run, dimensionless, estimate
from testbed.experiment.dimensionless import Numbers

_TITLES = {
    "chunks": "chunks per transfer",
    "rtt_over_transfer": "round trip / transfer time",
    "queue_over_bdp": "queue / bandwidth-delay product",
    "communication_share": "communication share",
    "passes": "passes in a burst",
    "round_bytes": "bytes per round",
}


def of_each(runs: Sequence[Run], report: estimate.Report) -> list[tuple[Run, Numbers]]:
    """One run for each arm and point, with its numbers.

    Raises:
        InputError: a user's model or data cannot be had.
    """
    firsts = [run for run in runs if run.seed == runs[0].seed]
    sizes = estimate.layouts(firsts, report)
    return [
        (run, dimensionless.numbers(run, layout)) for run, layout in zip(firsts, sizes, strict=True)
    ]


def show(found: Sequence[tuple[Run, Numbers]], console: Console) -> None:
    """Print the numbers, one line for each arm and point."""
    table = Table("arm", "factors", *_TITLES.values(), box=None, pad_edge=False)
    for run, numbers in found:
        factors = ", ".join(str(value) for value in run.factors.values())
        table.add_row(run.arm, factors, *(_cell(name, numbers) for name in _TITLES))
    console.print("\nnumbers that do not depend on the speed of machine and links, predicted:")
    console.print(table)
    if any(run.experiment.training.pace.kind == "real" for run, _ in found):
        console.print("pace real: the share of communication is measured, not chosen")


def show_kept(
    found: Sequence[tuple[Run, Numbers]],
    reference: Sequence[tuple[Run, Numbers]],
    console: Console,
) -> None:
    """Print what of another profile's numbers these keep, over the arms that both have."""
    ours, theirs = _paired(found, reference)
    if not ours:
        console.print(f"profile {REFERENCE_PROFILE}: no arm in common")
        return
    profile = found[0][0].profile
    table = Table("number", profile, REFERENCE_PROFILE, f"{profile} is", box=None, pad_edge=False)
    for name, row in dimensionless.compared(ours, theirs).items():
        table.add_row(_TITLES[name], *row)
    console.print(f"\nwhat profile {profile} keeps of profile {REFERENCE_PROFILE}:")
    console.print(table)
    there = [run.factors for run, _ in reference]
    if any(run.factors not in there for run, _ in found):
        console.print(f"points that {REFERENCE_PROFILE} lacks stand beside the first that it has")


def _paired(
    found: Sequence[tuple[Run, Numbers]], reference: Sequence[tuple[Run, Numbers]]
) -> tuple[list[Numbers], list[Numbers]]:
    """Numbers of the same arm at the same point; at its first point where points differ."""
    ours, theirs = [], []
    for run, numbers in found:
        same_arm = [each for each in reference if each[0].arm == run.arm]
        same_point = [each for each in same_arm if each[0].factors == run.factors]
        if same_arm:
            ours.append(numbers)
            theirs.append((same_point or same_arm)[0][1])
    return ours, theirs


def _cell(name: str, numbers: Numbers) -> str:
    value = getattr(numbers, name)
    if value is None:
        return "-"
    if name == "communication_share":
        return f"{100 * value:.1f} %"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
