"""The gate of realised loss: whether as many packets were lost as was configured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controllers import impairment_plan, impairments
from testbed.lab.loss_table import LossModel
from testbed.lab.network import LabInfo
from testbed.verdict.gate import Gate, compared, not_applicable
from testbed.verdict.ledgers import Conservation

NAME, KEY = "difference between realised and configured loss", "loss_error"
_LOSSES = ("loss", "sender-drop")
# Of a run: of all its tests together.
FALSE_ALARMS = 1e-6
# An occurrence that met so many packets is tested by itself, too.
_LONG_PACKETS = 1000
# Filters draw numbers of 31 or 32 bits: what is rarer than half of one never happens.
NEVER = 2.0**-33
# From what ten million packets need to what a handful needs; a step of 1.5 costs 2 % of resolution.
_TILTS = [sign * 0.001 * 1.5**step for step in range(26) for sign in (1, -1)]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Packets that one loss took at random."""

    where: str  # the impairment or the direction of a link
    model: LossModel
    met: Sequence[int]  # packets of each occurrence, all of which begin in the good state
    lost: int  # of all of them
    planned: int | None = None  # how many of them a table says to lose; None: chance decides

    @property
    def packets(self) -> int:
        return sum(self.met)

    @property
    def expected(self) -> float:
        """The planned number of losses, or their mean."""
        if self.planned is not None:
            return self.planned
        return sum(map(self.model.expected_losses, self.met))

    @property
    def difference(self) -> float:
        """How far the realised share of losses is from the mean."""
        return abs(self.lost - self.expected) / self.packets

    def by_chance(self, false_alarms: float) -> float:
        """The largest `difference`, to the side that it has, that chance explains."""
        if self.planned is not None:
            return 0.0
        fewest, most = explained_by_chance(self.model, self.met, false_alarms)
        edge = most if self.lost > self.expected else fewest
        return abs(edge - self.expected) / self.packets


def explained_by_chance(
    model: LossModel, met: Sequence[int], false_alarms: float
) -> tuple[float, float]:
    """The fewest and the most losses that chance explains."""
    # A loss takes packets as a `LossModel` says: in a state s it loses one with probability l(s),
    # then the state changes. For any tilt t, let A(s, s') = (1 - l(s) + l(s) e^t) P(s, s'), with
    # its largest eigenvalue r and eigenvector h. After n packets of which X were lost, e^(tX) r^-n
    # h(state) has the mean h(good), wherever one stops. So by Ville's inequality (J. Ville, Étude
    # critique de la notion de collectif, 1939) it ever exceeds c times its mean with a probability
    # of at most 1/c. The best of some fixed tilts is taken at the price of their number: Chernoff's
    # bound (Annals of Mathematical Statistics 23, 1952) that also holds where losses decide how
    # many packets come. They do: a lossy leg ends later, a congestion control slows down. A
    # binomial test does not hold there, nor for a loss that comes in runs.
    needed = math.log(len(_TILTS) / false_alarms)
    fewest, most = 0.0, float(sum(met))
    for tilt in _TILTS:
        growth, spread = _growth(model, tilt)
        bound = (sum(met) * growth + len(met) * spread + needed) / tilt
        fewest, most = (fewest, min(most, bound)) if tilt > 0 else (max(fewest, bound), most)
    return fewest, most


def _growth(model: LossModel, tilt: float) -> tuple[float, float]:
    """The logarithms of r, and of h(good) over the smaller h."""
    # The first line of A h = r h gives h(bad) / h(good) = (r - stay) / (good leave), with A's
    # diagonal (stay, remain). The difference is not taken where the two nearly cancel.
    good, bad = (1 - loss + loss * math.exp(tilt) for loss in (model.loss_good, model.loss_bad))
    leave, back = model.p_good_to_bad, model.p_bad_to_good
    if leave < NEVER:
        return math.log(good), 0.0
    stay, remain = good * (1 - leave), bad * (1 - back)
    around = good * leave * bad * back
    root = math.hypot(stay - remain, 2 * math.sqrt(around))
    beyond = (remain - stay + root) / 2  # r - stay
    if remain < stay:
        beyond = 2 * around / (stay - remain + root)
    bad_over_good = beyond / (good * leave)
    spread = max(0.0, -math.log(bad_over_good)) if bad_over_good else math.inf
    return math.log((stay + remain + root) / 2), spread


def gates(
    config: Mapping[str, Any],
    network: LabInfo,
    events: Sequence[Mapping[str, Any]],
    ledgers: Conservation | None,
    *,
    changed: Collection[tuple[str, str]] = (),
) -> list[Gate]:
    """Tests every loss of a run: of its impairments, and of links that lose by themselves."""
    allowed = config["limits"][KEY]
    missing: list[str] = []
    samples = [*_of_impairments(config, events, missing), *_of_links(network, ledgers, missing)]
    lossy = any(link.loss for link in network.links)
    # What users wrote may change a link's loss meanwhile, and no record says so.
    own = sorted({str(each["kind"]) for each in events} - set(impairments.KINDS)) if lossy else []
    note = ""
    if own:
        links = {link.name for link in network.links}
    else:
        links = _of_changing_loss(config, network) if lossy else set()
    if lossy and links:
        samples = [each for each in samples if each.where.partition(" from ")[0] not in links]
        what = ", ".join(own) or f"a trace of {', '.join(sorted(links))}"
        note = f"links' own loss not compared: {what} may have changed it"
    if by_hand := {f"{link} from {sender}" for link, sender in changed}:
        samples = [each for each in samples if each.where not in by_hand]
        told = f"set by hand, so not compared: {', '.join(sorted(by_hand))}"
        note = "; ".join(filter(None, (note, told)))
    if not samples:
        if missing:
            return [compared(NAME, KEY, 0.0, allowed, missing="; ".join(missing))]
        return [not_applicable(NAME, KEY, allowed, note or "no loss met a packet")]
    false_alarms = FALSE_ALARMS / len(samples)
    farthest = max(
        samples,
        # What a table plans may not differ at all.
        key=lambda it: it.difference / (allowed + it.by_chance(false_alarms) or 1e-12),
    )
    return [
        compared(
            NAME,
            KEY,
            farthest.difference,
            allowed + farthest.by_chance(false_alarms),
            where=farthest.where,
            note="; ".join(filter(None, (_resolution(farthest, samples, false_alarms), note))),
            missing="; ".join(missing),
        )
    ]


def _of_changing_loss(config: Mapping[str, Any], network: LabInfo) -> set[str]:
    """The links whose own loss an entry changes for a while."""
    places = impairment_plan.places_of(network.as_json())
    known = [each for each in config["impairments"] if each["kind"] in impairments.KINDS]
    entries = [each for each in map(impairments.read, known) if "loss" in each.changes_middle]
    return {"--".join(places.link_of(each)) for each in entries}


def _resolution(worst: Sample, samples: Sequence[Sample], false_alarms: float) -> str:
    """What was tested, and the differences that the tests could have seen."""
    coarsest = max(samples, key=lambda each: each.by_chance(false_alarms))
    return (
        f"lost {worst.lost} of {worst.packets} packets, expected {worst.expected:.1f}; "
        f"{len(samples)} tests, the coarsest sees differences above "
        f"{coarsest.by_chance(false_alarms):.4g} ({coarsest.where}: {coarsest.packets} packets)"
    )


def _of_impairments(
    config: Mapping[str, Any], events: Sequence[Mapping[str, Any]], missing: list[str]
) -> Iterator[Sample]:
    """Each entry that loses packets, and each of its long occurrences."""
    entries = {each["name"]: each for each in config["impairments"]}
    ends: dict[str, list[Mapping[str, Any]]] = {}
    for each in events:
        if each["action"] == "end" and each.get("counts_as") in _LOSSES:
            ends.setdefault(each["name"], []).append(each)
    for name, records in ends.items():
        planned = [each.get("details", {}).get("planned") for each in records]
        if None not in planned and all(each.get("met") is not None for each in records):
            for each in (one for one in records if one["met"]):
                place = f"round {each['round']}" if each["round"] >= 0 else "by time"
                yield dataclasses.replace(
                    _sample(f"{name} {place} {each['leg']}", LossModel(), [each]),
                    planned=each["details"]["planned"],
                )
            continue
        model = getattr(impairments.read(entries[name]), "model", None)
        if not isinstance(model, LossModel) or any(each.get("met") is None for each in records):
            missing.append(f"{name} counts as loss, but gives no `model` or not what it `met`")
            continue
        hits = [each for each in records if each["met"]]
        if hits:
            yield _sample(name, model, hits)
        if len(hits) > 1:
            for each in hits:
                if each["met"] >= _LONG_PACKETS:
                    place = f"round {each['round']}" if each["round"] >= 0 else "by time"
                    yield _sample(f"{name} {place} {each['leg']}", model, [each])


def _sample(where: str, model: LossModel, records: Sequence[Mapping[str, Any]]) -> Sample:
    met = [int(each["met"]) for each in records]
    return Sample(where=where, model=model, met=met, lost=sum(each["dropped"] for each in records))


def _of_links(
    network: LabInfo, ledgers: Conservation | None, missing: list[str]
) -> Iterator[Sample]:
    """Each direction of each link that is configured to lose."""
    losses = {link.name: link.loss for link in network.links if link.loss}
    if losses and (ledgers is None or not ledgers.quiet):
        missing.append("what links lost by themselves was not counted")
    elif ledgers is not None:
        for way in ledgers.links:
            met = way.sent - way.interface_drops - way.delay_drops
            if way.link in losses and met:
                model = LossModel(loss_good=losses[way.link])
                where = f"{way.link} from {way.sender}"
                yield Sample(where=where, model=model, met=[met], lost=way.delay_lost)
