"""Writes the methods section from the runs' manifests and configurations."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from analysis.data import learning
from analysis.data.blocks import machine_text
from analysis.data.evidence import Run, impairment_kinds
from analysis.data.learning import dataset_name
from analysis.data.load import Results
from analysis.data.records import section
from analysis.words import formatting

_MOST_LISTED = 6
# Of impairments: which rounds the seed drew, and switches of the injection itself.
_UNSAID = ("rounds", "name", "seed", "loss_good", "loss_bad", "spare_control")
_LONGEST = 60  # characters of a value: a trace has thousands of changes
_PACKAGES = ("torch", "numpy", "ryu", "os-ken")


def sentences(results: Results) -> list[str]:
    """Sentences for a paper's methods section; none without an ok run."""
    runs = results.ok_runs
    if not runs:
        return []
    machines = _distinct(machine_text(run.manifest) for run in runs if run.manifest)
    software = _distinct(_software(run.manifest) for run in runs)
    networks = _distinct(_network(section(run.config, "topology")) for run in runs)
    commands = _distinct(
        f"{each.get('name')} on {each.get('host')}: {shlex.join(map(str, each.get('run') or []))}"
        for run in runs
        for each in section(run.config, "workload").get("programs") or []
    )
    trainings = _distinct(_training(section(run.config, "training")) for run in runs)
    rounds = " or ".join(map(str, sorted({run.config.get("rounds") or 0 for run in runs} - {0})))
    impairments = _distinct(
        _impairment(each)
        for run in runs
        for each in run.config.get("impairments") or []
        if isinstance(each, dict)
    )
    more = len(impairments) - _MOST_LISTED
    listed = "; ".join(impairments[:_MOST_LISTED]) + (f"; and {more} more" if more > 0 else "")
    said = (
        ("Each run emulated all of its hosts on one machine: {}.", "; or ".join(machines)),
        ("Software: {}.", "; or ".join(software)),
        ("Network: {}.", "; or ".join(networks[:_MOST_LISTED])),
        (f"Training: {{}}; {rounds} rounds.", "; or ".join(trainings[:_MOST_LISTED])),
        ("Programs: {}.", "; ".join(commands[:_MOST_LISTED])),
        ("Impairments (a seed draws their rounds, or the experiment lists them): {}.", listed),
    )
    found = [sentence.format(text) for sentence, text in said if text]
    return [*found, _design(results), *_calibration(runs)]


def assumptions(results: Results) -> list[str]:
    """Our choices where the paper is silent, read from the first ok run's configuration."""
    if not results.ok_runs or results.runs_programs:
        return []
    config = results.ok_runs[0].config
    topology, training = section(config, "topology"), section(config, "training")
    phases, transport = section(config, "phases"), section(config, "transport")
    found: list[str] = []
    if topology.get("rate_bps") is not None:
        found.append(
            "The paper does not give its link rate, queue or round-trip time. Here a link has "
            f"{_rate(topology['rate_bps'])} and a queue of {topology.get('queue_bytes', '?')} "
            "bytes; the table of paths has the measured round-trip times."
        )
    if training and learning.pace(config)["kind"] != "payload-only":
        found.append(
            f"The model is {training.get('model')} on {dataset_name(training)}, with "
            f"{topology.get('workers', '?')} workers and {config.get('rounds')} rounds. Compare "
            "the accuracies of the arms with one another, not with those of the paper's models."
        )
    if transport.get("chunk_bytes"):
        found.append(
            f"The paper gives no chunk size. Here a chunk carries {transport['chunk_bytes']} bytes "
            "and fills one datagram, so the loss rate of packets is the loss rate of chunks."
        )
    if phases.get("detector") == "schedule" and phases.get("from"):
        found.append(
            f"The critical rounds were taken from {phases['from']}; they are the same in all arms."
        )
    elif phases.get("detector", "gradient-norm") != "gradient-norm":
        found.append(f"The detector {phases['detector']} tells phases, not the paper's rule.")
    elif phases:
        cadence = phases.get("cadence", phases.get("every_rounds"))
        cadence = "once per epoch" if cadence == "epoch" else f"every {cadence} rounds"
        found.append(
            f"The phase detector runs {cadence} with eta = {phases.get('eta')}. The paper's text "
            "says once per epoch, its authors' code every ten rounds."
        )
    kinds = sorted(set(impairment_kinds(config.get("impairments")).values()))
    if kinds:
        found.append(
            "The paper does not say how it made its microbursts. Here impairments of these kinds "
            f"take their place: {', '.join(kinds)}."
        )
    found.append("Round latency is gather plus broadcast as the server sees them, without compute.")
    if "fixed-low" in results.arms:
        found.append(
            "The baseline fixed-low is the same transport with one tolerance, as in the paper."
        )
    return found


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
    size = f"{len(hosts)} hosts" if hosts else f"{topology.get('workers', '?')} workers"
    words = [f"{topology.get('name')} with {size}"]
    if isinstance(topology.get("rate_bps"), int | float):
        words.append(f"{_rate(topology['rate_bps'])} per link")
    if topology.get("queue_bytes"):
        words.append(f"queues of {topology['queue_bytes']} bytes")
    if topology.get("queue_bdp"):
        words.append(f"queues of {topology['queue_bdp']} bandwidth-delay products")
    delay = formatting.number(topology.get("delay_s"), formatting.Unit("ms", 1e3))
    delayed = f"{delay} ms of delay per link and direction"
    return ", ".join([*words, delayed if topology.get("delay_s") else "no delay added"])


def _training(training: dict[str, Any]) -> str:
    if not training:
        return ""
    pace = section(training, "pace")
    if pace.get("kind") == "payload-only":
        scale = pace.get("scale") or 1
        share = "" if scale == 1 else f", {scale:g} of its size"
        return (
            f"none: payloads with the layers of {training.get('model')}{share}, "
            f"{pace.get('compute_s', 0):g} s between rounds"
        )
    words = [f"{training.get('model')} on {dataset_name(training)}"]
    if training.get("batch_size"):
        words.append(f"{training['batch_size']} samples per worker and round")
    if training.get("optimiser"):
        words.append(
            f"{training['optimiser']} with learning rate {training.get('learning_rate')} "
            f"and momentum {training.get('momentum')}"
        )
    if pace.get("kind", "real") != "real":
        words.append(f"pace {pace['kind']}, {pace.get('compute_s', 0)} s per iteration")
    return ", ".join(words)


def _impairment(settings: dict[str, Any]) -> str:
    said = ((name, str(v)) for name, v in settings.items() if v and name not in _UNSAID)
    return ", ".join(f"{name} {v[:_LONGEST]}{'...' if v[_LONGEST:] else ''}" for name, v in said)


def _design(results: Results) -> str:
    seeds = sorted({run.seed for run in results.runs})
    points = {json.dumps(run.factors, sort_keys=True, default=str) for run in results.runs}
    profiles = _distinct(str(run.config.get("profile") or "") for run in results.ok_runs)
    profile = f"profile {' and '.join(profiles)}, " if profiles else ""
    factors = "" if points == {"{}"} else f", {len(points)} points of the factors"
    fixed = "initial weights, data order, shares and the rounds that are hit"
    if results.runs_programs:
        fixed = "when impairments hit"
    listed = ", ".join(map(str, seeds[:12])) + (", ..." if len(seeds) > 12 else "")
    return (
        f"Design: {profile}{_count(results.arms, 'arm')}{factors}, "
        f"{_count(seeds, 'seed')} ({listed}), {len(results.runs)} runs planned, "
        f"{len(results.ok_runs)} ok. A seed fixes {fixed}; it is the same for every arm."
    )


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
        f"Calibration before each run: {_count(errors, 'path')} measured over all runs; rates were "
        f"within {max(errors) * 100:.2g} % of what was configured."
    ]


def _count(things: Sequence[Any], word: str) -> str:
    return f"{len(things)} {word}" if len(things) == 1 else f"{len(things)} {word}s"


def _rate(rate_bps: float) -> str:
    unit = formatting.unit_for("bps", [rate_bps])
    return f"{formatting.number(rate_bps, unit)} {unit.symbol}"


def _distinct(texts: Iterable[str]) -> list[str]:
    return [each for each in dict.fromkeys(texts) if each]
