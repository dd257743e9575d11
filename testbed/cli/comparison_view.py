"""Prints two results of one experiment side by side."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from analysis import comparison
from analysis.comparison import Compared
from analysis.data.metrics import describe
from testbed.cli import places
from testbed.cli.terminal import PlainTable
from testbed.shared.input_error import InputError

# What a reader looks for first; `--json` has all.
_SHOWN = (
    "round_latency_s.p50",
    "round_latency_s.p99",
    "round_latency_s.burst_mean",
    "round_latency_s.calm_mean",
    "gather_latency_s.burst_mean",
    "realised_loss.gather",
    "realised_loss.broadcast",
    "passes_per_transfer",
    "bytes_sent",
    "accuracy",
    "perplexity",
)


def show(first: Path, second: Path, json_file: Path | None, console: Console) -> None:
    """Print the comparison, and write all of it to a file."""
    are_runs = {places.is_run(first), places.is_run(second)}
    if len(are_runs) > 1:
        raise InputError(f"{first} and {second}: valid: two results of an experiment, or two runs")
    compare = comparison.compare_runs if are_runs == {True} else comparison.compare
    try:
        found = compare(comparison.evidence(first), comparison.evidence(second))
    except ValueError as error:
        raise InputError(str(error)) from None
    if json_file is not None:
        document = comparison.document(str(first), str(second), found)
        try:
            json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"--json {json_file}: {error.strerror}") from None
    table = PlainTable("arm", "point", "metric", "first", "second", "second / first", "pairs")
    for each in found:
        if each.metric in _SHOWN:
            table.add_row(*_row(each))
    console.print(table)


def _row(each: Compared) -> list[str]:
    point = ", ".join(f"{name} {value}" for name, value in each.factors.items())
    metric, ratio = describe(each.metric), each.ratio
    unit = f" ({metric.unit})" if metric.unit in ("s", "bytes") else ""
    found = "-" if ratio.value is None else f"{ratio.value:.3f}"
    if ratio.low is not None and ratio.high is not None:
        found += f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    numbers = [f"{each.first:.5g}", f"{each.second:.5g}", found, str(ratio.n)]
    return [each.arm, point, metric.label + unit, *numbers]
