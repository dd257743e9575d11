"""The gates of a run's verdict: each compares one measured value of the emulator with a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed.lab.network import LabInfo
from testbed.shared import run_directory
from testbed.verdict import (
    calibration_gates,
    delay_gates,
    impairment_gates,
    ledgers,
    link_settings,
    links_under_load,
    processor_headroom,
    realised_loss,
    standstill,
)
from testbed.verdict.calibration import Calibration
from testbed.verdict.gate import Gate, compared, not_measured, worst
from testbed.verdict.gate_explanations import GATES
from testbed.verdict.ledgers import Conservation
from testbed.verdict.limits import Limits
from testbed.verdict.link_changes import LinkChanges
from testbed.verdict.link_settings import SettingsReader
from testbed.verdict.links_under_load import LinksUnderLoad
from testbed.verdict.processor_headroom import Headroom
from testbed.verdict.standstill import Standstill


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was measured before, during and after a run's training."""

    directory: Path
    config: Mapping[str, Any]
    network: LabInfo
    calibration: Calibration
    ledgers: Conservation | None  # None: `unreadable` says why
    headroom: Headroom
    events: Sequence[Mapping[str, Any]]
    load: LinksUnderLoad
    settings: SettingsReader
    switch_holds_bytes: int | None  # its socket buffer; None: it sends by no socket
    changes: LinkChanges = field(default_factory=LinkChanges)
    unreadable: str = ""
    other_programs: str = ""
    standstills: Sequence[Standstill] = ()
    rounds: Sequence[Mapping[str, Any]] = ()


def judge(seen: Evidence) -> list[Gate]:
    """Compare a finished run with the limits of its experiment."""
    # Keys that are younger than the run's key are written only where they are not the default.
    limits = {key: each.default for key, each in Limits.model_fields.items()}
    limits |= seen.config["limits"]
    deepest_bytes = {
        (link.name, end.node): max(link.queue_bytes, seen.changes.shape(link, end.node).queue_bytes)
        + (link.priority_queue_bytes or 0)
        for link in seen.network.links
        for end in (link.first, link.second)
    }
    of_switches = sum(
        deepest for (_, sender), deepest in deepest_bytes.items() if sender in seen.network.switches
    )
    found = [
        *calibration_gates.gates(seen.calibration, limits),
        *calibration_gates.socket_gates(
            max(deepest_bytes.values()), of_switches, seen.switch_holds_bytes, limits
        ),
        *ledgers.gates(seen.ledgers, limits, seen.unreadable),
        *processor_headroom.gates(seen.headroom, limits, seen.other_programs),
        *standstill.gates(seen.standstills, seen.rounds, limits),
        impairment_gates.lateness(seen.events, seen.config),
        impairment_gates.met_nothing(seen.events, limits),
        *realised_loss.gates(
            seen.config,
            seen.network,
            seen.events,
            seen.ledgers,
            changed=seen.changes.of(seen.network, "loss"),
        ),
        *link_settings.gates(seen.settings, limits, seen.rounds),
        *links_under_load.gates(seen.load, limits),
        of_samples(seen.directory, limits),
        *delay_gates.gates(
            seen.directory / "delay.json",
            seen.network,
            limits,
            changes=seen.changes,
        ),
    ]
    return [_marked(gate, limits) for gate in found]


def reasons(gates: Sequence[Gate]) -> str:
    """Why the run does not count, for `status.json`; empty if it does."""
    return "; ".join(gate.sentence() for gate in gates if gate.stops)


_SAMPLER = "samples/sampler.json"
_LONGEST_GAP_S = 2.0  # up to 0.89 s in runs that counted, on a machine that others used


def of_samples(directory: Path, limits: Mapping[str, Any]) -> Gate:
    """The share of samples that were not taken or not answered, or of one kind that failed."""
    name, key = "share of the samples that are missing", "samples_missing"
    found = run_directory.read_or_empty(directory / _SAMPLER)
    if not found:
        why = f"{_SAMPLER} is missing: the sampler died; logs/sampler.log may say why"
        return not_measured(name, key, limits[key], why)
    taken, lost = found["ticks"], found["samples_lost"]
    unanswered = found["answers_left_out"] + found["answers_too_late"]
    shares = [
        (lost / max(1, taken + lost), "the sampler was late"),
        (unanswered / max(1, taken), "the kernel's answers were late or lacked a queue"),
    ]
    for part, facts in found["parts"].items():
        if part != "live" and facts["errors"]:  # no gate reads what is for who watches
            shares.append((facts["errors"] / max(1, taken), f"{part}: {facts['last_error']}"))
    value, where = worst(shares)
    # A longer time without a sample hides too much, however long the run is.
    problems = list(found["problems"])
    if (gap_s := found["largest_gap_s"]) > _LONGEST_GAP_S:
        problems.append(f"no sample for {gap_s:.1f} s")
    return compared(
        name,
        key,
        value,
        limits[key],
        where=where if value else "",
        note=f"the longest time without a sample was {gap_s:.3f} s",
        missing="; ".join(problems),
    )


def _marked(gate: Gate, limits: Mapping[str, Any]) -> Gate:
    """The gate, with what the experiment says about it."""
    # Keys that share one explanation belong to one gate. A looser limit decides, but is told.
    keys = [key for key, about in GATES.items() if about is GATES[gate.key]]
    named = [key for key in keys if key in limits["waive"]]
    loose = [
        f"{key}, by a limit of {limits[key]:g} instead of {default:g}"
        for key in keys
        if limits[key] > (default := Limits.model_fields[key].default)
    ]
    told = [*(f"{key}, by limits.waive" for key in named), *loose]
    return replace(gate, waived="; ".join(told), decides=not named)
