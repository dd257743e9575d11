"""Checks a run's impairments against its network and rounds, and resolves periods and draws."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controllers import impairments
from controllers.impairments import ImpairmentParameters
from controllers.impairments.base import LEGS_OF
from testbed.shared.input_error import InputError
from testbed.shared.registry import one_of


@dataclass(frozen=True, kw_only=True)
class Places:
    """The hosts and links (by their two nodes) that an entry may name."""

    hosts: Sequence[str]
    switches: Collection[str]
    links: Sequence[tuple[str, str]]
    working_hosts: Collection[str] = ()  # that train, or on which programs run
    settings: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """Of links as configured, if known: rate_bps, delay_s, jitter_s."""

    @classmethod
    def of(cls, topology: Any, hosts: Sequence[str], working_hosts: Collection[str] = ()) -> Places:
        return cls(
            hosts=hosts,
            switches=topology.switches(),
            links=topology.links(),
            working_hosts=working_hosts,
            settings={ends: topology.linkInfo(*ends) for ends in topology.links()},
        )

    def place(self, parameters: ImpairmentParameters) -> str:
        """Name what an entry acts on: a host itself, or one direction (or both) of a link."""
        if "link" not in parameters.allowed_targets:
            return parameters.host
        ends = parameters.link or self._last_link(parameters.host)
        if parameters.both_ways:
            return "<->".join(sorted(ends))
        return "->".join(ends)

    def rates_set(self, parameters: ImpairmentParameters) -> set[tuple[str, str]]:
        if not parameters.sets_rate:
            return set()
        sender, receiver = parameters.link or self._last_link(parameters.host)
        there, back = (sender, receiver), (receiver, sender)
        return {there, back} if parameters.sets_rate == "both ways" else {there}

    def check(self, parameters: ImpairmentParameters) -> None:
        """Raise ValueError, which begins with the key, for a host or link that does not exist."""
        if parameters.link is not None:
            if not any(set(parameters.link) == set(link) for link in self.links):
                valid = ", ".join(f"[{first}, {second}]" for first, second in self.links)
                ends = ", ".join(parameters.link)
                raise ValueError(f"link: [{ends}]: no such link; valid, either way: {valid}")
            if parameters.acts_at_sending_switch and parameters.link[0] not in self.switches:
                raise ValueError(
                    f"link: [{', '.join(parameters.link)}]: kind {parameters.kind} acts where a "
                    f"switch sends; {parameters.link[0]} is a host"
                )
        for key, host in parameters.hosts_named.items():
            if host not in self.hosts:
                raise ValueError(f"{key}: unknown host {host!r}; {one_of(host, self.hosts)}")
        if parameters.acts_on_process and self.working_hosts:
            working = [host for host in self.hosts if host in self.working_hosts]
            if parameters.host not in working:
                raise ValueError(
                    f"host: {parameters.host!r}: nothing of the workload runs there; "
                    f"valid: {', '.join(working)}"
                )
        if self.settings and "link" in parameters.allowed_targets:
            parameters.check_link(self.settings[self.link_of(parameters)])

    def delays(self, entries: Sequence[ImpairmentParameters]) -> dict[tuple[str, str], float]:
        delayed: dict[tuple[str, str], float] = {}
        for entry in entries:
            if entry.changes_middle:
                ends = self.link_of(entry)
                longest_s = entry.longest_wait_s(self.settings[ends])
                delayed[ends] = max(delayed.get(ends, 0.0), longest_s)
        return delayed

    def link_of(self, parameters: ImpairmentParameters) -> tuple[str, str]:
        ends = set(parameters.link or self._last_link(parameters.host))
        return next(link for link in self.links if set(link) == ends)

    def _last_link(self, host: str) -> tuple[str, str]:
        for first, second in self.links:
            if host in (first, second):
                return (second, first) if host == first else (first, second)
        return ("", host)


def resolve(
    entries: Sequence[ImpairmentParameters], places: Places, *, rounds: int, seed: int
) -> list[dict[str, Any]]:
    """Resolve the entries to plain data, with lists; InputError: a line for each wrong one."""
    labels = [entry.label for entry in entries]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            raise InputError(
                f"impairments.{index}.name: {label!r} is taken by impairments."
                f"{labels.index(label)}; give them distinct names"
            )
    documents: list[dict[str, Any]] = []
    resolved: list[ImpairmentParameters] = []
    wrong: list[str] = []
    for index, entry in enumerate(entries):
        try:
            places.check(entry)
            documents.append(entry.resolved(seed=seed, rounds=rounds))
            resolved.append(impairments.read(documents[-1]))
        except ValueError as error:
            key, colon, _ = str(error).partition(": ")
            where = f".{error}" if colon and key in type(entry).model_fields else f": {error}"
            wrong.append(f"impairments.{index}{where}")
    if wrong:
        raise InputError(*wrong)
    for (index, first), (other, second) in itertools.combinations(enumerate(resolved), 2):
        where = _overlap(first, second)
        if where and contradict(first, second, places):
            both = " and ".join(sorted(both_change(first, second))) or "a rate"
            alike = f"are {first.kind}" if first.kind == second.kind else f"set {both}"
            raise InputError(
                f"impairments.{other} ({second.label}): contradicts impairments.{index} "
                f"({first.label}): both {alike} at {first.target} {where}; "
                "valid: other rounds, legs, instants or targets, or one entry"
            )
    return documents


_WAIT = {"delay_s", "jitter_s"}


def contradict(first: ImpairmentParameters, second: ImpairmentParameters, places: Places) -> bool:
    """Tell whether two entries that are in force at the same time would undo each other."""
    if places.rates_set(first) & places.rates_set(second):
        return True
    alike = (first.exclusive and first.kind == second.kind) or both_change(first, second)
    return bool(alike) and places.place(first) == places.place(second)


def both_change(first: ImpairmentParameters, second: ImpairmentParameters) -> set[str]:
    """List what both change of delay_s, jitter_s and loss; delay and jitter bound each other."""
    one, two = set(first.changes_middle), set(second.changes_middle)
    return one & two or (_WAIT if one & _WAIT and two & _WAIT else set())


def places_of(network: Mapping[str, Any]) -> Places:
    return Places(
        hosts=list(network["hosts"]),
        switches=set(network["switches"]),
        links=[(link["first"]["node"], link["second"]["node"]) for link in network["links"]],
    )


def _overlap(first: ImpairmentParameters, second: ImpairmentParameters) -> str:
    """Say when two resolved entries are certain to overlap; empty if that cannot be known."""
    if isinstance(first.at_s, list) and isinstance(second.at_s, list):
        for instant_s in first.at_s:  # both in order
            place = bisect.bisect_right(second.at_s, instant_s - second.longest_s)
            if place < len(second.at_s) and second.at_s[place] < instant_s + first.longest_s:
                return f"at {max(instant_s, second.at_s[place]):g} s"
    if not isinstance(first.rounds, list) or not isinstance(second.rounds, list):
        return ""
    if not (common := sorted(set(first.rounds) & set(second.rounds))):
        return ""
    for leg in first.legs:
        if leg in second.legs and (
            first.offset_s < second.offset_s + second.longest_s
            and second.offset_s < first.offset_s + first.longest_s
        ):
            return f"in the {leg} of round {common[0]}"
    # A whole round contains both of its legs.
    for outer, inner in ((first, second), (second, first)):
        is_open = outer.leg == "round" and outer.duration_s is None
        if is_open and set(inner.legs) & {*LEGS_OF["both"]}:
            return f"in round {common[0]}"
    return ""
