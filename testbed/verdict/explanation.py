"""Explains a finished run: its verdict, the gates behind it, likely causes, and what to do."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from testbed.shared import run_directory
from testbed.verdict.gates import BY_KEY, STOPPING, GateEntry

_LOG_LINES = 15
_LOG = re.compile(r"logs/[\w.-]+\.log")

MEANINGS = {
    "ok": "Every gate that was not waived has passed or did not apply. The run counts in all "
    "tables.",
    "invalid": "The emulator, and not the protocol, was the limit, or it could not be told, or the "
    "experiment did not do what it says. The tables leave the run out.",
    "failed": "Something broke before the run was done. The tables leave the run out.",
    "unsupported": "This machine or user lacks what the run needs. Nothing was run.",
    "interrupted": "The command ended before the run did. The tables leave the run out.",
}
# What a reason contains -> what usually causes it, and what to do. The first that fits counts.
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"the disk is full",
        "A file could not be written.",
        "Make room: ./lab clean removes an experiment's results. Then try again (./lab run).",
    ),
    (
        r"by impairment .*\(kind crash\)",
        "An impairment of this experiment killed the process, as the experiment says.",
        "To train on without a lost worker, set training.on_worker_loss: continue.",
    ),
    (
        r"killed by SIGKILL",
        "Mostly the kernel, because memory ran out.",
        "See the kernel's messages (dmesg). Use fewer workers, a smaller model or a smaller batch.",
    ),
    (
        r"lost \S+: silent|timed out",
        "The peer heard nothing for transport.peer_timeout_s: an impairment cut it off for longer, "
        "or a process was stuck.",
        "Compare events/impairments.jsonl with both logs. Raise transport.peer_timeout_s if the "
        "impairment is meant to last.",
    ),
    (
        r"run_timeout_s",
        "The run took longer than limits.run_timeout_s allows, or own code did not return.",
        "Raise limits.run_timeout_s. ./lab plan estimates how long a run takes.",
    ),
    (
        r"\.py: line \d+",
        "The code in that line raised an error, or gave a value that no run can use.",
        "Mend the line, then try again (./lab run): a changed file makes a new run.",
    ),
    (
        "",
        "The reason and the log's end say what is known.",
        "Try again (./lab run). If it stays, please report it with the run directory.",
    ),
)
# The same where the reason begins with the name of a user's own program; these come first.
_OF_PROGRAMS: tuple[tuple[str, str, str], ...] = (
    (
        r"by impairment .*\(kind crash\)",
        "An impairment of this experiment killed the program, as the experiment says.",
        "A run ends with a program that fails: leave the impairment out, or let it hit later.",
    ),
    (
        r"ended|killed by|\(time_limit_s\)",
        "The program itself failed, or took longer than its time_limit_s or after_timeout_s.",
        "See its log, mend the program or these limits, then try again (./lab run).",
    ),
)


class GateFinding(NamedTuple):
    record: Mapping[str, Any]
    about: GateEntry


class Explained(NamedTuple):
    """The end of a run: verdict, gates that stopped it, other gates, and the log's end."""

    verdict: str
    reason: str
    causes: str
    remedy: str
    gates: list[GateFinding]  # the waived ones last
    others: list[GateFinding]
    log: str
    log_end: list[str]


def explain(directory: Path) -> Explained:
    status = run_directory.status(directory)
    config = run_directory.read_or_empty(directory / "config.json")
    verdict, reason = str(status["verdict"]), str(status["reason"])

    def gate_of(record: Mapping[str, Any]) -> GateFinding:
        about = BY_KEY[record["key"]]
        remedy = _with_whole_command(about.remedy, directory, config)
        return GateFinding(record=record, about=replace(about, remedy=remedy))

    gates = [gate_of(record) for record in status["gates"] if record["key"] in BY_KEY]
    beyond = [gate for gate in gates if gate.record["outcome"] in STOPPING]
    causes, remedy = _causes(verdict, reason, config)
    log = _log_of(directory, reason) if verdict == "failed" else ""
    return Explained(
        verdict=verdict,
        reason=reason,
        causes=causes,
        remedy=_with_whole_command(remedy, directory, config),
        gates=sorted(beyond, key=lambda gate: not gate.record["decides"]),
        others=[gate for gate in gates if gate not in beyond],
        log=log,
        log_end=_end_of(directory / log) if log else [],
    )


def _with_whole_command(text: str, directory: Path, config: Mapping[str, Any]) -> str:
    """Complete the text by what tries this run again, as it was planned."""
    verb = "simulate" if config.get("simulated") else "run"
    again = f"./lab {verb} {shlex.quote(str(directory.parent))}"
    if run_directory.is_of_script(config):  # no command knows its plan
        again = "the same script"
    return text.replace("./lab run", again)


def _causes(verdict: str, reason: str, config: Mapping[str, Any]) -> tuple[str, str]:
    if verdict == "failed":
        programs = config.get("workload", {}).get("programs", [])
        is_program = reason.partition(":")[0] in [program["name"] for program in programs]
        table = (*_OF_PROGRAMS, *_FAILURES) if is_program else _FAILURES
        return next((why, what) for pattern, why, what in table if re.search(pattern, reason))
    remedies = {
        "unsupported": "./lab check says what this machine can do, and how to get the rest.",
        "interrupted": "Try again (./lab run).",
    }
    return "", remedies.get(verdict, "")


def _log_of(directory: Path, reason: str) -> str:
    """Find the first log that the reason names; else that of the process which it begins with."""
    named = [log for log in _LOG.findall(reason) if (directory / log).exists()]
    first = f"{reason.partition(':')[0]}.log"
    if named:
        return named[0]
    exists = run_directory.is_name(first) and (directory / "logs" / first).exists()
    return f"logs/{first if exists else 'supervisor.log'}"


def _end_of(log: Path) -> list[str]:
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            return [line.rstrip() for line in deque(lines, maxlen=_LOG_LINES)]
    except OSError:
        return []
