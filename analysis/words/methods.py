"""The methods: what the runs' manifests and configurations say, a short row each."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis.data.blocks import machine_text
from analysis.data.load import Results
from analysis.data.records import section
from analysis.words import formatting
from analysis.words.formatting import joined

_MOST_LISTED = 6
# Of impairments: which rounds the seed drew, and switches of the injection itself.
_UNSAID = ("rounds", "name", "seed", "loss_good", "loss_bad", "spare_control")
_LONGEST = 60  # characters of a value: a trace has thousands of changes
_PACKAGES = ("torch", "numpy", "ryu", "os-ken")

Rows = list[tuple[str, str]]  # what, and the text


def rows(results: Results) -> Rows:
    """How the runs were made; none without an ok run."""
    runs = results.ok_runs
    if not runs:
        return []
    programs = (
        f"{program.get('name')} on {program.get('host')}: "
        f"{shlex.join(map(str, program.get('run') or []))}"
        for run in runs
        for program in section(run.config, "workload").get("programs") or []
    )
    impairments = (
        _settings(impairment, _UNSAID)
        for run in runs
        for impairment in run.config.get("impairments") or []
        if isinstance(impairment, dict)
    )
    found = (
        ("Machine, for all hosts", _listed(machine_text(run.manifest) for run in runs)),
        ("Software", _listed(_software(run.manifest) for run in runs)),
        ("Network", _listed(_network(section(run.config, "topology")) for run in runs)),
        ("Training", _listed(_settings(section(run.config, "training")) for run in runs)),
        ("Phases", _listed(_settings(section(run.config, "phases")) for run in runs)),
        ("Rounds", _listed(str(run.config.get("rounds") or "") for run in runs)),
        ("Programs", _listed(programs)),
        ("Impairments", _listed(impairments)),
        ("Design", _design(results)),
        ("A seed fixes", _fixed(results)),
    )
    return [(name, text) for name, text in found if text]


def _software(manifest: dict[str, Any]) -> str:
    tools = [
        str(manifest[name]) if name == "openvswitch" else f"{name} {manifest[name]}"
        for name in ("mininet", "openvswitch", "python")
        if manifest.get(name)
    ]
    versions = section(manifest, "packages")
    return ", ".join(tools + [f"{name} {versions[name]}" for name in versions if name in _PACKAGES])


def _network(topology: dict[str, Any]) -> str:
    if not topology:
        return ""
    hosts = topology.get("hosts")
    delay = formatting.number(topology.get("delay_s"), formatting.Unit("ms", 1e3))
    rate_bps = topology.get("rate_bps") or 0
    unit = formatting.unit_for("bps", [rate_bps])
    return joined(
        str(topology.get("name")),
        f"{len(hosts)} hosts" if hosts else f"{topology.get('workers', '?')} workers",
        f"{formatting.number(rate_bps, unit)} {unit.symbol} per link" if rate_bps else "",
        f"queue {topology['queue_bytes']} bytes" if topology.get("queue_bytes") else "",
        f"queue {topology['queue_bdp']} BDP" if topology.get("queue_bdp") else "",
        f"delay {delay} ms per link and direction" if topology.get("delay_s") else "no delay",
    )


def _settings(settings: Mapping[str, Any], unsaid: Sequence[str] = ()) -> str:
    texts = (
        (name, f"({_settings(value)})" if isinstance(value, dict) else str(value))
        for name, value in settings.items()
        if value and name not in unsaid
    )
    return ", ".join(f"{name} {v[:_LONGEST]}{'...' if v[_LONGEST:] else ''}" for name, v in texts)


def _design(results: Results) -> str:
    seeds = sorted({run.seed for run in results.runs})
    points = {json.dumps(run.factors, sort_keys=True, default=str) for run in results.runs}
    profiles = _listed(str(run.config.get("profile") or "") for run in results.ok_runs)
    listed = ", ".join(map(str, seeds[:12])) + (", ..." if len(seeds) > 12 else "")
    return joined(
        f"profile {profiles}" if profiles else "",
        f"arms: {len(results.arms)}",
        f"points: {len(points)}" if points != {"{}"} else "",
        f"seeds: {listed}",
        f"{len(results.ok_runs)} of {len(results.runs)} planned runs ok",
    )


def _fixed(results: Results) -> str:
    fixed = "initial weights, data order, shares and the rounds that are hit"
    return f"{'when impairments hit' if results.runs_programs else fixed}, for every arm alike"


def _listed(texts: Iterable[str]) -> str:
    """The first of the different texts, and how many more there are."""
    found = list(filter(None, dict.fromkeys(texts)))
    more = len(found) - _MOST_LISTED
    return "; ".join(found[:_MOST_LISTED]) + (f"; and {more} more" if more > 0 else "")
