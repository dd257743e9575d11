"""The gates of a run's verdict: each compares one measured value of the emulator with a limit.

Every module that measures contributes its own gates. Here they are put together, and marked where
the experiment waives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.lab.network import LabInfo
from testbed.verdict import (
    calibration_gates,
    conservation_gates,
    delay_gates,
    headroom_gates,
    impairments_met,
    lateness_gates,
    link_settings,
    links_under_load,
    realised_loss,
    sampler_gates,
    share_gates,
    standstill,
    waivers,
)
from testbed.verdict.calibration import Calibration
from testbed.verdict.gate import Gate
from testbed.verdict.ledgers import Conservation
from testbed.verdict.limits import Limits
from testbed.verdict.link_changes import LinkChanges
from testbed.verdict.link_settings import SettingsReader
from testbed.verdict.links_under_load import LinksUnderLoad
from testbed.verdict.processor_headroom import Headroom
from testbed.verdict.share_gates import ShareUse
from testbed.verdict.standstill import Standstill


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was measured before, during and after a run's training.

    Attributes:
        directory: of the run.
        config: of the run, as in `config.json`.
        network: the lab.
        ledgers: None where the counters could not be read; `unreadable` says why.
        events: the records of `events/impairments.jsonl`.
        load: what the samples of queues tell.
        settings: how the kernel shaped the links before and after the training.
        changes: of links, by hand.
        host_cpu: what hosts with a share of the processors used of it.
        switch_holds_bytes: what the switch's socket buffer holds; None: it sends by no socket.
        other_programs: those outside the lab that used most of the processors, in words.
        standstills: the longest of each part of the emulator.
        rounds: the records of `events/rounds.jsonl`.
    """

    directory: Path
    config: Mapping[str, Any]
    network: LabInfo
    calibration: Calibration
    ledgers: Conservation | None
    headroom: Headroom
    events: Sequence[Mapping[str, Any]]
    load: LinksUnderLoad
    settings: SettingsReader
    switch_holds_bytes: int | None
    host_cpu: Mapping[str, ShareUse] = field(default_factory=dict)
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
        *conservation_gates.gates(seen.ledgers, limits, seen.unreadable),
        *headroom_gates.gates(seen.headroom, limits, seen.other_programs),
        *standstill.gates(seen.standstills, seen.rounds, limits),
        *share_gates.gates(seen.host_cpu, limits),
        *lateness_gates.gates(seen.events, seen.config),
        *impairments_met.gates(seen.events, limits),
        *realised_loss.gates(
            seen.config,
            seen.network,
            seen.events,
            seen.ledgers,
            changed=seen.changes.of(seen.network, "loss"),
        ),
        *link_settings.gates(seen.settings, limits, seen.rounds),
        *links_under_load.gates(seen.load, limits),
        *sampler_gates.gates(seen.directory, limits),
        *delay_gates.gates(
            seen.directory / "delay.json",
            seen.network,
            limits,
            changes=seen.changes,
        ),
    ]
    return [waivers.marked(gate, limits) for gate in found]


def reasons(gates: Sequence[Gate]) -> str:
    """Why the run does not count, for `status.json`; empty if it does."""
    return "; ".join(gate.sentence() for gate in gates if gate.stops)
