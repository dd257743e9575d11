"""`./lab bench rates`: each arm's learning rate by a validation part, in virtual time.

All candidates train with the first seed, the best three of them with all seeds; the best mean
wins, of equal ones the smaller rate. One whose double fails is too near to what diverges with some
seed, and out. Links are equal and lose nothing.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.progress import track

from analysis.tables import rendering
from testbed.bench import records
from testbed.experiment import Run
from testbed.run import simulating
from testbed.shared import jsonl
from testbed.shared.run_directory import RunDirectory
from testbed.shared.yaml_input import InputError
from testbed.transport import presets

CANDIDATES = tuple(0.001 * 2**power for power in range(1, 9))  # of SGD
_OF_ADAM = 1 / 16  # and the like, whose steps do not grow with the gradient
_LIKE_ADAM = ("adam", "adamw", "lazy-adamw", "rmsprop")
SEEDS = (1001, 1002, 1003)  # that no experiment of the lab uses
Record = dict[str, Any]
FINALISTS = 3  # those that are best with the first seed
_NOTE = (
    "Chosen is the candidate with the best mean over seeds {}, of equal ones the smaller, of those "
    "whose double does not fail. "
    f"In brackets: trained with the first seed only, and not among its best {FINALISTS}."
)
_ORDER = itemgetter("point", "arm", "learning_rate", "seed")
_ARM = itemgetter("point", "arm")
_CANDIDATE = itemgetter("point", "arm", "learning_rate")
# Of a configuration: what is no part of the training.
_NO_PART = {"schema", "key", "experiment", "factors", "limits", "datapath"}


def run(runs: Sequence[Run], *, json_file: Path | None) -> None:
    require_learning(runs, "rates")
    facts = records.machine()
    measured = sorted(measure(trials(runs)), key=_ORDER)
    print(rendering.to_text(table(measured)))
    if json_file is not None:
        records.write(json_file, measured, facts, schema=1)
        json_file.with_suffix(".md").write_text(rendering.to_markdown(table(measured)), "utf-8")


def measure(trials: Sequence[Record]) -> list[Record]:
    """Train each candidate with the first seed, and those that do best with the other seeds.

    Where all of these diverge, the next best follow.
    """
    first = trials[0]["seed"]
    measured = trained(train, [trial for trial in trials if trial["seed"] == first])
    left = dict[tuple[str, str], list[Record]]()  # of each arm the finite ones, the best first
    for arm, of_arm in groupby(sorted(measured, key=_ORDER), key=_ARM):
        finite = [record for record in of_arm if record["value"] is not None]
        left[arm] = sorted(finite, key=lambda record: _cost(record["metric"], record["value"]))
    others = [trial for trial in trials if trial["seed"] != first]
    while others and any(left.values()):
        best = {_CANDIDATE(record) for finite in left.values() for record in finite[:FINALISTS]}
        further = trained(train, [trial for trial in others if _CANDIDATE(trial) in best])
        measured += further
        diverged = {_CANDIDATE(record) for record in further if record["value"] is None}
        left = {
            arm: finite[FINALISTS:]
            for arm, finite in left.items()
            if {_CANDIDATE(record) for record in finite[:FINALISTS]} <= diverged
        }
    return measured


def _cost(metric: str, value: float) -> float:
    return -value if metric == "accuracy" else value


def _fails(metric: str, values: Sequence[float | None], best: float) -> bool:
    """Tell whether one of the trainings diverged, or ended with half of the best accuracy."""
    numbers = [value for value in values if value is not None]
    half = metric == "accuracy" and min(numbers, default=best) <= best / 2
    return half or len(numbers) < len(values)


def require_learning(runs: Sequence[Run], what: str) -> None:
    if not all(run.experiment.trains for run in runs):
        raise InputError(f"bench {what}: programs learn nothing here; valid: built-in training")
    if any(run.experiment.training.pace.kind == "payload-only" for run in runs):
        raise InputError(f"bench {what}: nothing is learnt with training.pace 'payload-only'")


def trained(train: Callable[[Record], Record], trials: Sequence[Record]) -> list[Record]:
    """Train every trial, on all processors that this process may use (`taskset`)."""
    context = multiprocessing.get_context("spawn")  # torch must not have run before a fork
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        ended, hidden = pool.map(train, trials), not sys.stdout.isatty()
        return list(track(ended, "training", len(trials), disable=hidden))


def trials(runs: Sequence[Run]) -> list[Record]:
    """Make a trial of every candidate for each run; points that train the same are one."""
    distinct: dict[str, Record] = {}
    for run, candidate in itertools.product(runs, CANDIDATES):
        like_adam = run.experiment.training.optimiser in _LIKE_ADAM
        rate = candidate * (_OF_ADAM if like_adam else 1)
        config, point = _undisturbed(run, rate), ", ".join(map(str, run.factors.values()))
        kept = {key: value for key, value in config.items() if key not in _NO_PART}
        text = json.dumps(kept, sort_keys=True)
        if text in distinct:
            distinct[text]["point"] += f"; {point}"
            continue
        trial = {"point": point, "arm": run.arm, "learning_rate": rate, "seed": run.seed}
        distinct[text] = {**trial, "rounds": config["rounds"], "config": config}
    return list(distinct.values())


def _undisturbed(run: Run, rate: float) -> Record:
    """Put the run on fast links that lose nothing, evaluated on the validation part."""
    config, star = run.config(), {"name": "star", "workers": run.experiment.topology.workers}
    training = config["training"] | {"learning_rate": rate, "evaluate_on": "validation"}
    training |= {"pace": {"kind": "paced", "compute_s": 0.001}, "measure_every": 0}
    protocol = {**config["protocol"], "congestion_control": "fixed"}
    if protocol["carrier"] != "udp":  # what is simulated
        protocol["congestion_control"] = "cubic"
        protocol = protocol if "keep" in protocol else dict(presets.preset("none").describe())
    config |= {"training": training, "protocol": protocol, "impairments": []}
    return config | {"topology": star | {"rate_bps": 1_000_000_000, "queue_bytes": 4_000_000}}


def train(trial: Record) -> Record:
    """Simulate a trial; return its record, whose `value` is None where the model diverged."""
    record = dict(trial)
    config = record.pop("config") | {"capture": []}
    with tempfile.TemporaryDirectory(prefix="lab-bench-") as folder:
        with RunDirectory(Path(folder, config["key"])).open(config) as directory:
            simulating.simulate(directory, lambda progress: None)
        ends = [jsonl.read(path)[-1] for path in directory.glob("events/training-*.jsonl")]
    metric = "accuracy" if "accuracy" in ends[0] else "perplexity"
    return record | {"metric": metric, "value": mean([end[metric] for end in ends])}


def mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if len(numbers) == len(values) else None


def table(measured: Sequence[Mapping[str, Any]]) -> rendering.Table:
    """Tabulate what is chosen for each point and arm; a rate with which a seed diverged is out."""
    rows, seeds = [], sorted({record["seed"] for record in measured})
    for names, of_arm in groupby(sorted(measured, key=_ORDER), key=_ARM):
        metric, finite, values, shown = "", {}, dict[float, list[float | None]](), {}
        for rate, of_rate in groupby(of_arm, key=itemgetter("learning_rate")):
            records = list(of_rate)
            values[rate] = [record["value"] for record in records]
            value, metric = mean(values[rate]), records[0]["metric"]
            shown[rate] = "diverges" if value is None else f"{value:.4g}"
            if value is not None and len(records) < len(seeds):
                shown[rate] = f"({shown[rate]})"
            elif value is not None:
                finite[rate] = value
        most = max(finite.values(), default=0.0)
        safe = [rate for rate in finite if not _fails(metric, values.get(2 * rate, []), most)]
        chosen = min(safe, key=lambda rate: (_cost(metric, finite[rate]), rate), default=None)
        choice = "none" if chosen is None else f"{chosen:g}"
        choice += " (at the end of the candidates)" * (chosen in (min(shown), max(shown)))
        best = "-" if chosen is None else f"{metric} {finite[chosen]:.4g}"
        rows.append([*names, choice, best, ", ".join(f"{r:g}: {t}" for r, t in shown.items())])
    columns = ["point", "arm", "learning rate", "mean on the validation part", "of each candidate"]
    return rendering.Table(
        title="Learning rates by the validation part",
        columns=columns,
        rows=[[rendering.Cell(text=text) for text in texts] for texts in rows],
        notes=[_NOTE.format(", ".join(map(str, seeds)))],
        numeric=False,
    )
