"""The gates of impairments: all on time, all met something, and losses were as configured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controllers import impairment_plan, impairments
from controllers.impairments.base import LEGS_OF, STILL_IN_FORCE
from testbed.lab.loss_table import LossModel
from testbed.lab.network import LabInfo
from testbed.verdict.conservation import Conservation
from testbed.verdict.gates import Finding, worst
from testbed.verdict.link_changes import LinkChanges

Events = Sequence[Mapping[str, Any]]


def lateness(events: Events, config: Mapping[str, Any], limits: Mapping[str, Any]) -> Finding:
    if not config["impairments"]:
        return Finding(note="there is no impairment")
    late = [(event["acknowledged_s"] - event["planned_s"], _place(event)) for event in events]
    for event in events:
        if (late_s := event.get("details", {}).get("late_max_s")) is not None:
            late.append((late_s, f"a change of {event['name']}"))
    skipped = Counter(
        event["name"]
        for event in events
        if event["action"] == "skipped" and not _still_in_force(event)
    )
    missing = "; ".join(_missing(events, config["impairments"]))
    if not late:
        return Finding(missing=missing or "no impairment was due")
    value, where = worst([*late, (0.0, "")])
    return Finding(
        value=value,
        where=where,
        note="; ".join(
            f"{count} of {name} skipped, since their leg or the run ended before they were due"
            for name, count in skipped.items()
        ),
        missing=missing,
        # How long rounds last hardly differs from one attempt to the next.
        repeats=value <= limits["impairment_late_s"] and any(map(_still_in_force, events)),
    )


def _missing(events: Events, planned: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what should have happened and did not."""
    counts = Counter((event["name"], event["action"]) for event in events)
    in_force = Counter(event["name"] for event in events if _still_in_force(event))
    for entry in planned:
        name, rounds = entry["name"], entry.get("rounds")
        due = len(entry["at_s"]) if rounds is None else len(rounds) * len(LEGS_OF[entry["leg"]])
        begun, ended, skipped = (counts[name, action] for action in ("begin", "end", "skipped"))
        if (lost := due - begun - skipped) > 0:
            yield f"{lost} of {due} occurrences of {name} neither began nor were skipped"
        if in_force[name]:
            yield (
                f"{in_force[name]} of {due} occurrences of {name} did not begin, since the one "
                "before was still in force"
            )
        if ended < begun:
            yield f"{begun - ended} of {begun} occurrences of {name} did not end"
        if due and not begun:
            yield f"no occurrence of {name} began"


def _still_in_force(event: Mapping[str, Any]) -> bool:
    return bool(event["action"] == "skipped" and event.get("details", {}).get(STILL_IN_FORCE))


def _place(event: Mapping[str, Any]) -> str:
    when = f" in round {event['round']}" if event.get("round", -1) >= 0 else ""
    return f"{event['action']} of {event['name']}{when}"


def unmet(events: Events) -> Finding:
    met: dict[str, list[int]] = {}
    uncounted: set[str] = set()
    for event in events:
        if event["action"] != "end":
            continue
        if event.get("met") is not None:
            met.setdefault(event["name"], []).append(event["met"])
        else:
            uncounted.add(str(event["kind"]))
    notes = [f"not known of {', '.join(sorted(uncounted))}, which count nothing"]
    notes = notes if uncounted else []
    if not met:
        notes = ["no impairment began that counts what it meets", *notes]
        return Finding(note="; ".join(notes))
    unmet_entries = [entry for entry, counts in met.items() if not any(counts)]
    pauses = [
        f"{counts.count(0)} of {len(counts)} occurrences of {entry} met nothing"
        for entry, counts in met.items()
        if entry not in unmet_entries and 0 in counts
    ]
    return Finding(
        value=len(unmet_entries),
        where=", ".join(unmet_entries),
        note="; ".join([*pauses, *notes]),
        repeats=True,
    )


def weak_bursts(events: Events) -> Finding:
    short = [(0.0, "")]
    for event in events:
        if due := event.get("details", {}).get("frames_due"):
            short.append((1 - event["frames_sent"] / due, _occurrence(event)))
    if len(short) == 1:
        return Finding(note="there is no burst")
    value, where = worst(short)
    return Finding(value=value, where=where)


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
        if self.planned is not None:
            return self.planned
        return sum(map(self.model.expected_losses, self.met))

    @property
    def difference(self) -> float:
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
    """Bound the fewest and the most losses that chance explains."""
    # In a state s a `LossModel` loses a packet with probability l(s), then the state changes. For
    # any tilt t, let A(s, s') = (1 - l(s) + l(s) e^t) P(s, s'), with its largest eigenvalue r and
    # eigenvector h. After n packets of which X were lost, e^(tX) r^-n h(state) has the mean
    # h(good), wherever one stops. So by Ville's inequality (Étude critique de la notion de
    # collectif, 1939) it ever exceeds c times its mean with a probability of at most 1/c. The best
    # of some fixed tilts is taken at the price of their number: Chernoff's bound (Annals of
    # Mathematical Statistics 23, 1952) that also holds where losses decide how many packets come,
    # as they do: a lossy leg ends later. A binomial test does not hold there, nor for a loss that
    # comes in runs.
    needed = math.log(len(_TILTS) / false_alarms)
    fewest, most = 0.0, float(sum(met))
    for tilt in _TILTS:
        growth, spread = _growth(model, tilt)
        bound = (sum(met) * growth + len(met) * spread + needed) / tilt
        fewest, most = (fewest, min(most, bound)) if tilt > 0 else (max(fewest, bound), most)
    return fewest, most


def _growth(model: LossModel, tilt: float) -> tuple[float, float]:
    """Compute the logarithms of r, and of h(good) over the smaller h."""
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


def realised_loss(
    config: Mapping[str, Any],
    network: LabInfo,
    events: Events,
    ledgers: Conservation | None,
    changes: LinkChanges,
    limits: Mapping[str, Any],
) -> Finding:
    """Test every loss of a run: of its impairments, and of links that lose by themselves."""
    allowed = limits["loss_error"]
    missing: list[str] = []
    samples = [*_of_impairments(config, events, missing), *_of_links(network, ledgers, missing)]
    samples, note = _without_changed(samples, config, network, events, changes)
    if not samples:
        return Finding(missing="; ".join(missing), note=note or "no loss met a packet")
    false_alarms = FALSE_ALARMS / len(samples)
    farthest = max(
        samples,
        # What a table plans may not differ at all.
        key=lambda one: one.difference / (allowed + one.by_chance(false_alarms) or 1e-12),
    )
    return Finding(
        value=farthest.difference,
        limit=allowed + farthest.by_chance(false_alarms),
        where=farthest.where,
        note="; ".join(filter(None, (_resolution(farthest, samples, false_alarms), note))),
        missing="; ".join(missing),
    )


def _without_changed(
    samples: list[Sample],
    config: Mapping[str, Any],
    network: LabInfo,
    events: Events,
    changes: LinkChanges,
) -> tuple[list[Sample], str]:
    """Leave out the links whose own loss was changed meanwhile; the note says by what."""
    notes = []
    if any(link.loss for link in network.links):
        # What users wrote may change a link's loss meanwhile, and no record says so.
        own = sorted({str(event["kind"]) for event in events} - set(impairments.KINDS))
        places = impairment_plan.places_of(network.as_json())
        links = {link.name for link in network.links if own} or {
            "--".join(places.link_of(entry))
            for entry in map(impairments.read, config["impairments"])
            if "loss" in entry.changes_middle
        }
        if links:
            samples = [one for one in samples if one.where.partition(" from ")[0] not in links]
            who = ", ".join(own) or f"a trace of {', '.join(sorted(links))}"
            notes.append(f"links' own loss not compared: {who} may have changed it")
    if by_hand := {f"{link} from {sender}" for link, sender in changes.of(network, "loss")}:
        samples = [one for one in samples if one.where not in by_hand]
        notes.append(f"set by hand, so not compared: {', '.join(sorted(by_hand))}")
    return samples, "; ".join(notes)


def _resolution(worst: Sample, samples: Sequence[Sample], false_alarms: float) -> str:
    coarsest = max(samples, key=lambda one: one.by_chance(false_alarms))
    return (
        f"lost {worst.lost} of {worst.packets} packets, expected {worst.expected:.1f}; "
        f"{len(samples)} tests, the coarsest sees differences above "
        f"{coarsest.by_chance(false_alarms):.4g} ({coarsest.where}: {coarsest.packets} packets)"
    )


def _of_impairments(
    config: Mapping[str, Any], events: Events, missing: list[str]
) -> Iterator[Sample]:
    entries = {entry["name"]: entry for entry in config["impairments"]}
    ends: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["action"] == "end" and event.get("counts_as") in _LOSSES:
            ends.setdefault(event["name"], []).append(event)
    for name, records in ends.items():
        counted = all(record.get("met") is not None for record in records)
        hits = [record for record in records if record.get("met")]
        if counted and all("planned" in record.get("details", {}) for record in records):
            for record in hits:
                planned = int(record["details"]["planned"])
                yield _sample(_occurrence(record), LossModel(), [record], planned)
            continue
        model = getattr(impairments.read(entries[name]), "model", None)
        if not isinstance(model, LossModel) or not counted:
            missing.append(f"{name} counts as loss, but gives no `model` or not what it `met`")
            continue
        if hits:
            yield _sample(name, model, hits)
        if len(hits) > 1:
            for record in hits:
                if record["met"] >= _LONG_PACKETS:
                    yield _sample(_occurrence(record), model, [record])


def _occurrence(record: Mapping[str, Any]) -> str:
    place = f"round {record['round']}" if record["round"] >= 0 else "by time"
    return f"{record['name']} {place} {record['leg']}"


def _sample(
    where: str,
    model: LossModel,
    records: Sequence[Mapping[str, Any]],
    planned: int | None = None,
) -> Sample:
    met = [int(record["met"]) for record in records]
    lost = sum(record["dropped"] for record in records)
    return Sample(where=where, model=model, met=met, lost=lost, planned=planned)


def _of_links(
    network: LabInfo, ledgers: Conservation | None, missing: list[str]
) -> Iterator[Sample]:
    losses = {link.name: link.loss for link in network.links if link.loss}
    if losses and (ledgers is None or not ledgers.idle):
        missing.append("what links lost by themselves was not counted")
    elif ledgers is not None:
        for way in ledgers.links:
            met = way.sent - way.interface_drops - way.delay_drops
            if way.link in losses and met:
                model = LossModel(loss_good=losses[way.link])
                where = f"{way.link} from {way.sender}"
                yield Sample(where=where, model=model, met=[met], lost=way.delay_lost)
