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
    if found.passed:
        say(console, "")
        _show_passed(console, found.passed)
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
    failed = record["passed"] is False
    value = f"{record['value']:.4g}" if record["value"] is not None else "not measured"
    state = "failed" if failed else "not checked"
    say(console, f"\ngate '{about.title}' {state}: {record['name']}")
    facts = {
        "value": f"{value}; limit {record['limit']:g} ({gate.limit_from})",
        "where": record["where"],
        "note": record["note"],
        "measured": about.measured,
        "evidence": f"{directory}/{about.evidence}",
    }
    if failed:
        facts |= {"usual cause": about.causes, "what to do": about.remedy}
    _facts(console, facts)


def _show_passed(console: Console, passed: list[GateFinding]) -> None:
    table = Table(
        "gate that passed", "value", "limit", "what is measured", box=None, pad_edge=False
    )
    for each in passed:
        record = each.record
        row = (each.about.title, f"{record['value']:.4g}", f"{record['limit']:g}", record["name"])
        table.add_row(*row)
    console.print(table)


def _facts(console: Console, facts: dict[str, str]) -> None:
    for name, words in facts.items():
        if words:
            say(console, f"  {name + ':':13} {words}")
