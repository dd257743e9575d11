"""Climbs the ladder of losses: each group of tensors by itself, until a rung does not hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from testbed.bench.layers import losses, rule
from testbed.bench.layers.losses import Group
from testbed.bench.layers.rule import LADDER, Finding, Record
from testbed.bench.layers.training import Trial
from testbed.experiment import Run
from testbed.shared.yaml_input import InputError
from testbed.training.run_context import RunContext

Trainer = Callable[[Sequence[Trial]], Sequence[Record]]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a training's tensors bear.

    Attributes:
        elements: of each group.
        climbed: for each group, the rungs that were tried, from the lowest.
        together: all groups at their bounds at once; None where no bound is above 0.
        without: the trainings without loss, in the order of the seeds.
        tensors: the bound of each tensor, in the order of the payload.
    """

    groups: tuple[Group, ...]
    elements: Mapping[str, int]
    climbed: Mapping[str, Sequence[Finding]]
    together: Finding | None
    without: Sequence[Record]
    tensors: Mapping[str, float]


def task(runs: Sequence[Run]) -> list[Trial]:
    """The trainings without loss: one for each seed, evaluated on the validation part.

    Raises:
        InputError: nothing is learnt, or runs of a seed train differently.
    """
    if any(not each.experiment.trains for each in runs):
        raise InputError("profile-layers: programs have no layers to lose")
    found: dict[int, Trial] = {}
    for run in runs:
        config = run.config()
        if config["training"]["pace"]["kind"] == "payload-only":
            raise InputError("profile-layers: nothing is learnt with training.pace 'payload-only'")
        training = {**config["training"], "evaluate_on": "validation"}
        # Of a configuration, what the learning alone depends on: all points that share it are one.
        kept = {key: config[key] for key in ("rounds", "seed", "folder", "transport")}
        trial = Trial(
            groups=(),
            shares=(),
            seed=run.seed,
            hosts=tuple(run.experiment.topology.host_names()),
            config={**kept, "training": training},
        )
        if found.setdefault(run.seed, trial) != trial:
            raise InputError(
                "profile-layers: the arms or points of the sweep train differently; valid: one "
                "task, chosen with --arms, or with --set factors={} and a key for each factor"
            )
    return list(found.values())


def climb(base: Sequence[Trial], train: Trainer, *, margin: float) -> Profile:
    """Find each group's bound.

    Args:
        base: the trainings without loss, of several seeds.
        train: executes trainings.
        margin: see `rule`.
    """
    layout = RunContext.without_network(base[0].config, base[0].hosts).layout
    counts = dict(layout.tensors)
    found = losses.groups(layout, LADDER[0])
    elements = {each.name: sum(counts[name] for name in each.tensors) for each in found}
    without: Sequence[Record] = []
    climbed: dict[str, list[Finding]] = {each.name: [] for each in found}
    left = list(found)
    for rung in LADDER:
        # The trainings without loss go with the first rung, so that no processor waits for them.
        wanted = [_with(each, (group,), (rung,)) for group in left for each in base]
        records = train([*wanted, *(base if not without else ())])
        without = without or _of(records, ())
        for group in left:
            climbed[group.name].append(
                rule.finding(rung, _of(records, (group,)), without, margin=margin)
            )
        left = [group for group in left if climbed[group.name][-1].holds]
        if not left:
            break
    bounds = {name: rule.bound(rungs) for name, rungs in climbed.items()}
    together = None
    if any(bounds.values()):
        shares = tuple(bounds[group.name] for group in found)
        records = train([_with(each, tuple(found), shares) for each in base])
        allowed = sum(bounds[name] * count for name, count in elements.items())
        together = rule.finding(allowed / layout.element_count, records, without, margin=margin)
    return Profile(
        groups=tuple(found),
        elements=elements,
        climbed=climbed,
        together=together,
        without=without,
        tensors=losses.by_tensor(bounds, found, layout),
    )


def _with(trial: Trial, groups: tuple[Group, ...], shares: tuple[float, ...]) -> Trial:
    return Trial(
        groups=groups, shares=shares, seed=trial.seed, hosts=trial.hosts, config=trial.config
    )


def _of(records: Sequence[Record], groups: tuple[Group, ...]) -> list[Record]:
    """Those in which these groups lost, in the order of the seeds."""
    names = [group.name for group in groups]
    return sorted((each for each in records if each["groups"] == names), key=lambda r: r["seed"])
