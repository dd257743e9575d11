"""The verbs `compare` and `explain`: two results side by side, and why a run ended as it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from testbed.cli import places
from testbed.cli.terminal import say, show_table
from testbed.shared.input_error import InputError
from testbed.verdict import explanation
from testbed.verdict.explanation import GateFinding

if TYPE_CHECKING:
    from analysis.comparison import Compared


def compare(first: Path, second: Path, json_file: Path | None, console: Console) -> None:
    """Print the comparison, and write all of it to a file."""
    from analysis import comparison  # imports what reads results, which takes a second
    from analysis.data.metrics import in_table

    if (are_runs := places.is_run(first)) != places.is_run(second):
        raise InputError(f"{first} and {second}: valid: two results of an experiment, or two runs")
    compared_by = comparison.compare_runs if are_runs else comparison.compare
    try:
        compared = compared_by(comparison.evidence(first), comparison.evidence(second))
    except ValueError as error:
        raise InputError(str(error)) from None
    if json_file is not None:
        document = comparison.document(str(first), str(second), compared)
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    headings = ("arm", "point", "metric", "first", "second", "second / first", "pairs")
    shown = in_table("compared")  # `--json` has all
    show_table(console, headings, (_row(each) for each in compared if each.metric in shown))


def _row(each: Compared) -> list[str]:
    from analysis.data.metrics import describe

    point = ", ".join(f"{name} {value}" for name, value in each.factors.items())
    metric, ratio = describe(each.metric), each.ratio
    unit = f" ({metric.unit})" if metric.unit in ("s", "bytes") else ""
    shown = "-" if ratio.value is None else f"{ratio.value:.3f}"
    if ratio.low is not None and ratio.high is not None:
        shown += f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    numbers = [f"{each.first:.5g}", f"{each.second:.5g}", shown, str(ratio.n)]
    return [each.arm, point, metric.label + unit, *numbers]


def explain(directory: Path, console: Console) -> None:
    """Print why a run ended as it did, and what to do."""
    run = explanation.explain(directory)
    say(console, f"{directory.name}: {run.verdict}")
    say(console, f"  {run.meaning}")
    facts = {"reason": run.reason} if run.reason and not run.gates else {}
    facts |= {"usual cause": run.causes, "what to do": run.remedy, "directory": str(run.directory)}
    _facts(console, facts)
    for gate in (*run.gates, *run.waived):
        _show_gate(console, gate, directory)
    if run.others:
        say(console, "")
        headings = ("other gates", "key", "outcome", "limit", "what is measured")
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
    say(console, f"\ngate '{about.title}' {outcome}: {record['name']}")
    facts = {
        "value": f"{value}; limit {record['limit']:g} (limits.{record['key']})",
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
    told = "; ".join(filter(None, words))
    return gate.about.title, record["key"], outcome, f"{record['limit']:g}", told


def _facts(console: Console, facts: dict[str, str]) -> None:
    for name, words in facts.items():
        if words:
            say(console, f"  {name + ':':13} {words}")
