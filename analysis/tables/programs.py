"""The table of the programs that a user's own workload ran: command, exit status, duration."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Any

from analysis.data import programs
from analysis.data.load import Results
from analysis.tables.rendering import Table, row
from analysis.words import formatting


def program_table(results: Results) -> Table:
    """Every arm's programs, over all runs that wrote what became of them."""
    rows = []
    for arm in results.arms:
        runs = [run for run in results.runs if run.arm == arm and run.directory is not None]
        found = [each for run in runs for each in programs.workload(run.directory)]
        used = ", ".join(results.congestion_controls(arm)) or formatting.DASH
        for name in dict.fromkeys(str(each.get("name")) for each in found):
            rows.append(row(arm, name, *_cells([e for e in found if e.get("name") == name]), used))
    return Table(
        title=f"{results.experiment}: the programs",
        columns=[
            *("Arm", "Program", "Host", "Command", "Exit status", "Duration (s)"),
            *("Congestion control", "Seen in the arm"),
        ],
        rows=rows,
        notes=[
            "Services are ended when all others have ended: their status is not judged. Seen: what "
            "the kernel says of the connections between hosts that were sampled."
        ],
        records=[
            {"run_key": run.key, "arm": run.arm, "seed": run.seed, **_flat(each)}
            for run in results.runs
            for each in programs.workload(run.directory)
        ],
        numeric=False,
    )


def _cells(found: list[dict[str, Any]]) -> list[str]:
    first = found[0]
    commands = list(dict.fromkeys(shlex.join(map(str, each.get("run") or [])) for each in found))
    more = f" (and {len(commands) - 1} more)" if commands[1:] else ""
    statuses = Counter(str(each.get("exit_status")) for each in found)
    told = ", ".join(f"{status} ({count} x)" for status, count in sorted(statuses.items()))
    times = [
        each["ended_s"] - each["began_s"]
        for each in found
        if each.get("began_s") and each.get("ended_s")
    ]
    ends = dict.fromkeys(map(formatting.number, sorted(times)[:: max(1, len(times) - 1)]))
    return [
        str(first.get("host")),
        commands[0] + more,
        f"service, {told}" if first.get("service") else told,
        formatting.TO.join(ends) or formatting.DASH,
        str(first.get("congestion_control") or formatting.DASH),
    ]


def _flat(program: dict[str, Any]) -> dict[str, Any]:
    return {**program, "run": shlex.join(map(str, program.get("run") or []))}
