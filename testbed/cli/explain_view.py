"""Prints why a run ended as it did, and what to do."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from testbed.cli.terminal import say
from testbed.verdict.explanation import Explained, GateFinding, explain


def show(directory: Path, console: Console) -> None:
    """Print the explanation of a run that has ended."""
    found = explain(directory)
    say(console, f"{directory.name}: {found.verdict}")
    say(console, f"  {found.meaning}")
    _facts(console, _verdict_facts(found))
    for gate in found.gates:
        _show_gate(console, gate, directory)
    for gate in found.waived:
        _show_gate(console, gate, directory)
    if found.others:
        say(console, "")
        _show_others(console, found.others)
    if found.log_end:
        say(console, f"\n{directory / found.log} ends:")
        for line in found.log_end:
            say(console, f"  {line}")


def _verdict_facts(found: Explained) -> dict[str, str]:
    facts = {"reason": found.reason} if found.reason and not found.gates else {}
    return facts | {
        "usual cause": found.causes,
        "what to do": found.remedy,
        "directory": str(found.directory),
    }


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


def _show_others(console: Console, others: list[GateFinding]) -> None:
    table = Table(
        *("other gates", "key", "outcome", "limit", "what is measured"), box=None, pad_edge=False
    )
    for each in others:
        record = each.record
        value = "" if record["value"] is None else f": {record['value']:.4g}"
        remarks = [record["waived"] and f"waived: {record['waived']}"]
        if record["value"] is None:
            remarks.append(record["note"])
        told = "; ".join(filter(None, (record["name"], *remarks)))
        outcome = record["outcome"] + value
        table.add_row(each.about.title, record["key"], outcome, f"{record['limit']:g}", told)
    console.print(table)


def _facts(console: Console, facts: dict[str, str]) -> None:
    for name, words in facts.items():
        if words:
            say(console, f"  {name + ':':13} {words}")
