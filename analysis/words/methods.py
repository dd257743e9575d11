"""The methods section, written from what the runs' manifests and configurations say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from analysis.data.load import Results, Run, impairment_kinds
from analysis.data.records import section
from analysis.words import formatting
from analysis.words.cautions import machine_text

# Of impairments: which rounds the seed drew, and switches of the injection itself.
_UNSAID = ("rounds", "name", "loss_good", "loss_bad", "spare_control")
_VERSIONS = ("torch", "numpy", "ryu", "os-ken")


def sentences(results: Results) -> list[str]:
    """How the numbers came about, for a paper's methods section; empty without an ok run."""
    runs = results.ok_runs
    if not runs:
        return []
    return [
        *_machine(runs),
        *_network(runs),
        *_training(runs),
        *_impairments(runs),
        *_design(results),
        *_calibration(runs),
    ]


def assumptions(results: Results) -> list[str]:
    """What these runs did where the paper is silent, read from the first ok run's configuration."""
    if not results.ok_runs:
        return []
    config = results.ok_runs[0].config
    topology, training = section(config, "topology"), section(config, "training")
    phases, transport = section(config, "phases"), section(config, "transport")
    rate = topology.get("rate_bps")
    found: list[str] = []
    if rate is not None:
        found.append(
            "Link rate, queue and round-trip time are not in the paper: here "
            f"{_rate_text(rate)} per link and a "
            f"queue of {topology.get('queue_bytes', '?')} bytes; round-trip times as calibrated."
        )
    if training:
        found.append(
            f"Model and data are small on purpose: {training.get('model')} on "
            f"{_name(training.get('dataset'))}, {topology.get('workers', '?')} workers, "
            f"{config.get('rounds')} rounds. "
            "Accuracies compare arms here, not with the paper's models."
        )
    if transport.get("chunk_bytes"):
        found.append(
            f"A chunk carries {transport['chunk_bytes']} bytes and fills one datagram: the loss "
            "rate of packets is the loss rate of chunks. The paper gives no chunk size."
        )
    if phases.get("detector", "gradient-norm") != "gradient-norm":
        found.append(
            f"Phases are told by the detector {phases['detector']}, not by the paper's rule."
        )
    elif phases:
        cadence = phases.get("cadence", phases.get("every_rounds"))
        cadence = "once per epoch" if cadence == "epoch" else f"every {cadence} rounds"
        found.append(
            f"The phase detector is evaluated {cadence} with eta = {phases.get('eta')}. "
            "The paper's text says once per epoch, its authors' code every ten rounds."
        )
    kinds = sorted(set(impairment_kinds(config.get("impairments")).values()))
    if kinds:
        found.append(
            f"The paper does not say how its microbursts were made. Here: {', '.join(kinds)}, by "
            "the controller, in chosen rounds."
        )
    found.append("Round latency is gather plus broadcast as the server sees them, without compute.")
    found.append(
        "The baseline fixed-low is the same transport with one tolerance, as in the paper."
    )
    return found


def _name(dataset: Any) -> Any:
    return dataset.get("name") if isinstance(dataset, dict) else dataset


def _machine(runs: Sequence[Run]) -> list[str]:
    machines = _distinct(machine_text(run.manifest) for run in runs if run.manifest)
    found = []
    if machines:
        found.append(f"All hosts were emulated on one machine at a time: {'; '.join(machines)}.")
    packages = _distinct(
        ", ".join(
            f"{name} {version}"
            for name, version in section(run.manifest, "packages").items()
            if name in _VERSIONS
        )
        for run in runs
    )
    tools = _distinct(
        ", ".join(
            str(run.manifest[name]) if name == "openvswitch" else f"{name} {run.manifest[name]}"
            for name in ("mininet", "openvswitch", "python")
            if run.manifest.get(name)
        )
        for run in runs
    )
    if tools or packages:
        found.append(f"Software: {'; '.join([*tools, *packages])}.")
    return found


def _network(runs: Sequence[Run]) -> list[str]:
    said = []
    for topology in _distinct_sections(run.config.get("topology") for run in runs)[:6]:
        rate, delay = topology.get("rate_bps"), topology.get("delay_s")
        words = [f"{topology.get('name')} with {topology.get('workers', '?')} workers"]
        if isinstance(rate, int | float):
            words.append(f"{_rate_text(rate)} per link")
        if topology.get("queue_bytes"):
            words.append(f"queues of {topology['queue_bytes']} bytes")
        if topology.get("queue_bdp"):
            words.append(f"queues of {topology['queue_bdp']} bandwidth-delay products")
        words.append(
            f"{formatting.number(delay, formatting.Unit('ms', 1e3))} ms of delay per link and "
            "direction"
            if delay
            else "no delay added"
        )
        said.append(", ".join(words))
    return [f"Network: {'; or '.join(said)}."] if said else []


def _rate_text(rate_bps: float) -> str:
    unit = formatting.unit_for("bps", [rate_bps])
    return f"{formatting.number(rate_bps, unit)} {unit.symbol}"


def _training(runs: Sequence[Run]) -> list[str]:
    said = []
    for training in _distinct_sections(run.config.get("training") for run in runs)[:6]:
        dataset = training.get("dataset")
        name = dataset.get("name") if isinstance(dataset, dict) else dataset
        pace = section(training, "pace")
        words = [f"{training.get('model')} on {name}"]
        if pace.get("kind") == "payload-only":
            scale = pace.get("scale") or 1
            share = "" if scale == 1 else f", {scale:g} of its size"
            said.append(
                f"none: payloads with the layers of {training.get('model')}{share}, "
                f"{pace.get('compute_s', 0):g} s between rounds"
            )
            continue
        if training.get("batch_size"):
            words.append(f"{training['batch_size']} samples per worker and round")
        if training.get("optimiser"):
            words.append(
                f"{training['optimiser']} with learning rate {training.get('learning_rate')} "
                f"and momentum {training.get('momentum')}"
            )
        if pace.get("kind", "real") != "real":
            words.append(f"pace {pace['kind']}, {pace.get('compute_s', 0)} s per iteration")
        said.append(", ".join(words))
    rounds = sorted({int(run.config["rounds"]) for run in runs if run.config.get("rounds")})
    count = " or ".join(map(str, rounds))
    return [f"Training: {'; or '.join(said)}; {count} rounds."] if said else []


def _impairments(runs: Sequence[Run]) -> list[str]:
    said = []
    for run in runs:
        for each in run.config.get("impairments") or []:
            if isinstance(each, dict):
                shown = {name: v for name, v in each.items() if v and name not in _UNSAID}
                said.append(", ".join(f"{name} {v}" for name, v in shown.items()))
    distinct = _distinct(said)
    if not distinct:
        return []
    more = f"; and {len(distinct) - 6} more" if len(distinct) > 6 else ""
    listed = "; ".join(distinct[:6])
    return [f"Impairments, in rounds drawn with the seed or listed: {listed}{more}."]


def _design(results: Results) -> list[str]:
    seeds = sorted({run.seed for run in results.runs})
    points = {json.dumps(run.factors, sort_keys=True, default=str) for run in results.runs}
    profiles = _distinct(str(run.config.get("profile") or "") for run in results.ok_runs)
    profile = f"profile {' and '.join(profiles)}, " if profiles else ""
    factors = "" if points == {"{}"} else f", {len(points)} points of the factors"
    listed = ", ".join(map(str, seeds[:12])) + (", ..." if len(seeds) > 12 else "")
    return [
        f"Design: {profile}{_count(results.arms, 'arm')}{factors}, "
        f"{_count(seeds, 'seed')} ({listed}), {len(results.runs)} runs planned, "
        f"{len(results.ok_runs)} ok. A seed fixes initial weights, data order, shares and the "
        "rounds that are hit, the same for every arm."
    ]


def _count(things: Sequence[Any], word: str) -> str:
    return f"{len(things)} {word}" if len(things) == 1 else f"{len(things)} {word}s"


def _calibration(runs: Sequence[Run]) -> list[str]:
    errors = [
        abs(link["rate_bps"] / link["configured_rate_bps"] - 1)
        for run in runs
        for link in run.calibration.get("links") or []
        if isinstance(link, dict) and link.get("rate_bps") and link.get("configured_rate_bps")
    ]
    if not errors:
        return []
    return [
        f"Every path was measured before training: rates were within {max(errors) * 100:.2g} % of "
        "what was configured."
    ]


def _distinct(texts: Iterable[str]) -> list[str]:
    return [each for each in dict.fromkeys(texts) if each]


def _distinct_sections(found: Iterable[Any]) -> list[dict[str, Any]]:
    by_text = {
        json.dumps(each, sort_keys=True, default=str): each
        for each in found
        if isinstance(each, dict)
    }
    return list(by_text.values())
