"""The methods: what the runs' manifests and configurations say, a short row each."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis.data import learning
from analysis.data.blocks import machine_text
from analysis.data.evidence import Run, impairment_kinds
from analysis.data.learning import dataset_name
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
        ("Training", _listed(_training(section(run.config, "training")) for run in runs)),
        ("Rounds", _listed(str(run.config.get("rounds") or "") for run in runs)),
        ("Programs", _listed(programs)),
        ("Impairments", _listed(impairments)),
        ("Design", _design(results)),
        ("A seed fixes", _fixed(results)),
        ("Calibration", _calibration(runs)),
    )
    return [(name, text) for name, text in found if text]


def assumptions(results: Results) -> Rows:
    """Our choices where the paper is silent, from the first ok run's configuration."""
    if not results.ok_runs or results.runs_programs:
        return []
    config = results.ok_runs[0].config
    topology, training = section(config, "topology"), section(config, "training")
    phases, transport = section(config, "phases"), section(config, "transport")
    kinds = sorted(set(impairment_kinds(config.get("impairments")).values()))
    learns = training and learning.pace(config)["kind"] != "payload-only"
    found = (
        ("Link rate and queue", _network(topology) if topology.get("rate_bps") else ""),
        ("Model", f"{learning.task(config)}: compare arms, not with the paper" if learns else ""),
        (
            "Chunk",
            f"{transport['chunk_bytes']} bytes, one datagram: loss of packets is loss of chunks"
            if transport.get("chunk_bytes")
            else "",
        ),
        ("Phases", _phases(phases) if phases else ""),
        ("Microbursts", f"by impairments of kind {', '.join(kinds)}" if kinds else ""),
        ("Round latency", "gather plus broadcast as the server sees them, without compute"),
        ("Baseline", "fixed-low: one tolerance" if "fixed-low" in results.arms else ""),
    )
    return [(name, text) for name, text in found if text]


def _phases(phases: Mapping[str, Any]) -> str:
    detector = phases.get("detector", "gradient-norm")
    if detector == "schedule" and phases.get("from"):
        return f"critical rounds of {phases['from']}, the same in all arms"
    if detector != "gradient-norm":
        return f"by {detector}, not by the paper's rule"
    cadence = phases.get("cadence")
    every = "once per epoch" if cadence == "epoch" else f"every {cadence} rounds"
    return f"{every}, eta {phases.get('eta')}; the paper: once per epoch, its code: every 10 rounds"


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
    rate_bps = topology.get("rate_bps")
    return joined(
        str(topology.get("name")),
        f"{len(hosts)} hosts" if hosts else f"{topology.get('workers', '?')} workers",
        f"{_rate(rate_bps)} per link" if isinstance(rate_bps, int | float) else "",
        f"queue {topology['queue_bytes']} bytes" if topology.get("queue_bytes") else "",
        f"queue {topology['queue_bdp']} BDP" if topology.get("queue_bdp") else "",
        f"delay {delay} ms per link and direction" if topology.get("delay_s") else "no delay",
    )


def _training(training: dict[str, Any]) -> str:
    if not training:
        return ""
    pace = section(training, "pace")
    if pace.get("kind") == "payload-only":
        scale = pace.get("scale") or 1
        share = "" if scale == 1 else f" x {scale:g}"
        gap_s = pace.get("compute_s", 0)
        return f"payload of {training.get('model')}{share}, {gap_s:g} s between rounds"
    optimiser = {name: training.get(name) for name in ("learning_rate", "momentum")}
    return joined(
        f"{training.get('model')} on {dataset_name(training)}",
        f"batch {training['batch_size']} per worker" if training.get("batch_size") else "",
        joined(training["optimiser"], _settings(optimiser)) if training.get("optimiser") else "",
        f"pace {pace['kind']}, {pace.get('compute_s', 0)} s per iteration"
        if pace.get("kind", "real") != "real"
        else "",
    )


def _settings(settings: Mapping[str, Any], unsaid: Sequence[str] = ()) -> str:
    texts = ((name, str(v)) for name, v in settings.items() if v and name not in unsaid)
    return ", ".join(f"{name} {v[:_LONGEST]}{'...' if v[_LONGEST:] else ''}" for name, v in texts)


def _design(results: Results) -> str:
    seeds = sorted({run.seed for run in results.runs})
    points = {json.dumps(run.factors, sort_keys=True, default=str) for run in results.runs}
    profiles = _distinct(str(run.config.get("profile") or "") for run in results.ok_runs)
    listed = ", ".join(map(str, seeds[:12])) + (", ..." if len(seeds) > 12 else "")
    return joined(
        f"profile {' and '.join(profiles)}" if profiles else "",
        f"arms: {len(results.arms)}",
        f"points: {len(points)}" if points != {"{}"} else "",
        f"seeds: {listed}",
        f"{len(results.ok_runs)} of {len(results.runs)} planned runs ok",
    )


def _fixed(results: Results) -> str:
    fixed = "initial weights, data order, shares and the rounds that are hit"
    return f"{'when impairments hit' if results.runs_programs else fixed}, for every arm alike"


def _calibration(runs: Sequence[Run]) -> str:
    errors = [
        abs(link["rate_bps"] / link["configured_rate_bps"] - 1)
        for run in runs
        for link in run.calibration.get("links") or []
        if isinstance(link, dict) and link.get("rate_bps") and link.get("configured_rate_bps")
    ]
    if not errors:
        return ""
    worst = f"{max(errors) * 100:.2g} %"
    return f"before each run, {len(errors)} paths in all: rates within {worst} of the configured"


def _rate(rate_bps: float) -> str:
    unit = formatting.unit_for("bps", [rate_bps])
    return f"{formatting.number(rate_bps, unit)} {unit.symbol}"


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def _listed(texts: Iterable[str]) -> str:
    """The first of the different texts, and how many more there are."""
    found = _distinct(texts)
    more = len(found) - _MOST_LISTED
    return "; ".join(found[:_MOST_LISTED]) + (f"; and {more} more" if more > 0 else "")
