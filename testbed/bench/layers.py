"""`./lab bench layers`: how much loss each tensor of a training bears, for the preset `plot`.

Each tensor by itself loses chunks at random in every gather. A share holds if the interval of the
mean difference to training without loss does not reach below -margin.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.special import stdtrit

from testbed.bench import rates
from testbed.bench.rates import Record
from testbed.experiment import Run
from testbed.run import manifest
from testbed.run.simulating import OwnRandomNumbers, torch_as_in_a_lab
from testbed.shared import run_directory, yaml_input
from testbed.shared.yaml_input import InputError
from testbed.training.filling import mean_into
from testbed.training.state import RunContext
from testbed.transport import PayloadLayout

LADDER = (0.1, 0.2, 0.4, 0.6, 0.8)
_yaml: Any = functools.partial(yaml.safe_dump, sort_keys=False, width=9999, default_flow_style=None)


def run(runs: Sequence[Run], *, margin: float, file: Path | None) -> None:
    base, commit = without_loss(runs), manifest.commit()  # as it was when training began
    if len(base) < 2:
        raise InputError(f"--seeds {len(base)}: no spread is known; valid: at least 2")
    if file is not None and file.suffix not in yaml_input.SUFFIXES:
        raise InputError(f"--out {file}: valid: a name that ends in .yaml or .yml")
    profile = climb(base, functools.partial(rates.trained, train), margin=margin)
    seeds = [trial["seed"] for trial in base]
    print(_yaml({key: profile[key] for key in ("measured", "together", "tensors")}))
    if file is not None:
        facts: Record = {"experiment": runs[0].experiment.name, "commit": commit, "seeds": seeds}
        facts |= {key: base[0]["config"][key] for key in ("rounds", "transport", "training")}
        facts |= {"margin": margin, "ladder": list(LADDER)}
        run_directory.write_text(file.resolve(), _yaml({"schema": 1, "profile": facts, **profile}))
        print(f"profile: {file}")


def without_loss(runs: Sequence[Run]) -> list[Record]:
    """Make a trial without loss for each seed; InputError where runs of one train differently."""
    rates.require_learning(runs, "layers")
    trials: dict[int, Record] = {}
    for run in runs:
        config, hosts = run.config(), run.experiment.topology.host_names()
        # What the learning alone depends on: all points of a sweep that share it are one.
        kept = {key: config[key] for key in ("rounds", "seed", "folder", "transport")}
        kept["training"] = config["training"] | {"evaluate_on": "validation"}
        trial = {"seed": run.seed, "hosts": hosts, "shares": {}, "config": kept}
        if trials.setdefault(run.seed, trial) != trial:
            raise InputError(
                "bench layers: the arms or points of the sweep train differently; valid: one "
                "task, chosen with --arms, or with --set factors={} and a key for each factor"
            )
    return list(trials.values())


def groups(layout: PayloadLayout) -> dict[str, list[str]]:
    """Group each tensor alone, but `small` ones, whose least share is below a chunk, together."""
    least = layout.elements_per_chunk
    alone = {name: [name] for name, count in layout.tensors if count * LADDER[0] >= least}
    small = [name for name, _ in layout.tensors if name not in alone]
    return {**alone, "small": small} if small else alone


def parts(
    layout: PayloadLayout, members: Mapping[str, list[str]], shares: Mapping[str, float]
) -> list[tuple[Any, Any, int]]:
    """Return where each group's parts of chunks begin, their elements, and how many to lose."""
    pieces, names = layout.pieces, [name for name, _ in layout.tensors]
    starts, lossy = np.cumsum(pieces.elements) - pieces.elements, []
    for group, share in shares.items():
        chosen = np.isin(pieces.tensor, [names.index(name) for name in members[group]])
        elements = pieces.elements[chosen]
        lossy.append((starts[chosen], elements, int(share * elements.sum() + 1e-9)))
    return lossy


def lose(gradient: NDArray[np.float32], lossy: Sequence[Any], draw: Sequence[int]) -> int:
    """Zero parts of a gradient as lost chunks do; a larger share loses all that a smaller does."""
    lost = 0
    for index, (starts, elements, allowed) in enumerate(lossy):
        order = np.random.default_rng([*draw, index]).permutation(len(starts))
        for part in order[np.cumsum(elements[order]) <= allowed]:
            gradient[starts[part] : starts[part] + elements[part]] = 0
            lost += int(elements[part])
    return lost


def train(trial: Record) -> Record:
    """Train in one process without a network: lost is zero, the mean reaches all workers whole."""
    context = RunContext.without_network(trial["config"], trial["hosts"])
    lossy, lost = parts(context.layout, groups(context.layout), trial["shares"]), 0
    gradients = np.zeros((len(context.workers), context.layout.element_count), dtype=np.float32)
    mean = np.empty_like(gradients[0])
    with torch_as_in_a_lab():
        learners = [
            OwnRandomNumbers(functools.partial(context.learner, name)) for name in context.workers
        ]
        for number in range(context.rounds):
            for rank, learner in enumerate(learners):
                learner.gradient(gradients[rank])
                lost += lose(gradients[rank], lossy, [trial["seed"], number, rank])
            mean_into(list(gradients), mean)
            for learner in learners:
                learner.apply(mean, context.learning_rate(number))
        scores = [learner.evaluate() for learner in learners]
    sent = context.rounds * len(learners) * sum(int(elements.sum()) for _, elements, _ in lossy)
    value = rates.mean([None if score is None or math.isinf(score) else score for score in scores])
    return {"metric": context.metric, "value": value, "lost": lost / max(1, sent)}


def climb(
    base: Sequence[Record], learn: Callable[[list[Record]], list[Record]], *, margin: float
) -> Record:
    """Measure each group's bound; return the profile without what was trained."""
    layout = RunContext.without_network(base[0]["config"], base[0]["hosts"]).layout
    members, counts = groups(layout), dict(layout.tensors)
    without, left = learn(list(base)), list(members)
    rungs: dict[str, list[Record]] = {group: [] for group in members}
    for share in LADDER:
        trials = [trial | {"shares": {group: share}} for group in left for trial in base]
        learnt = iter(learn(trials) if trials else ())
        for group in left:
            mine = [next(learnt) for _ in base]
            rungs[group].append(finding(share, mine, without, margin=margin))
        left = [group for group in left if rungs[group][-1]["holds"]]
    bounds = {group: bound(climbed) for group, climbed in rungs.items()}
    of_tensor = {name: bounds[group] for group in members for name in members[group]}
    together = None
    if any(bounds.values()):
        share = sum(of_tensor[name] * count for name, count in layout.tensors)
        lossy = learn([trial | {"shares": bounds} for trial in base])
        together = finding(share / layout.element_count, lossy, without, margin=margin)
    return {
        "without_loss": [result["value"] for result in without],
        "tensors": {name: of_tensor[name] for name in counts},
        "measured": [
            {"group": group, "tensors": names, "elements": sum(counts[name] for name in names)}
            | {"bound": bounds[group], "at_least": bounds[group] == LADDER[-1]}
            | {"rungs": rungs[group]}
            for group, names in members.items()
        ],
        "together": together,
    }


def finding(
    share: float, lossy: Sequence[Record], without: Sequence[Record], *, margin: float
) -> Record:
    """Compare trainings with and without a loss, of the same seeds; below 0 loss is worse."""
    pairs = [(one["value"], other["value"]) for one, other in zip(lossy, without, strict=True)]
    lost = statistics.fmean(result["lost"] for result in lossy)
    differences, mean, low = list[float](), None, None
    if all(None not in pair for pair in pairs):
        is_accuracy = lossy[0]["metric"] == "accuracy"
        differences = [a - b if is_accuracy else -math.log(a / b) for a, b in pairs]
        mean, error = statistics.fmean(differences), statistics.stdev(differences)
        low = mean - float(stdtrit(len(pairs) - 1, 0.95)) * error / math.sqrt(len(pairs))
    rung = {"share": share, "lost": lost, "differences": differences, "mean": mean, "low": low}
    return rung | {"holds": low is not None and low >= -margin}


def bound(rungs: Sequence[Record]) -> float:
    """Return the last share before the first that does not hold, if it lost something; else 0."""
    holding = itertools.takewhile(itemgetter("holds"), rungs)
    return max((rung["share"] for rung in holding if rung["lost"]), default=0.0)
