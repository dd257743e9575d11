"""How a rank that was lost finds its place again, and hears from which step on it takes part.

Rank 0 keeps the place in the store: where all ranks are, and which buckets they have. A rank that
returns joins rank 0's endpoint as before, and waits. Rank 0's script lets it in between two steps,
which all ranks have taken, and says where its parameters are.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from testbed.ddp import addresses, plan
from testbed.ddp.meeting import Meeting
from testbed.ddp.places import Places, Ports
from testbed.ddp.settings import Settings, difference
from testbed.shared.input_error import InputError
from testbed.transport import PeerLost

_PLACE = "place"
_LOOK_S = 0.1


@dataclass(frozen=True)
class Place:
    """What the others' exchange is like.

    Attributes:
        at: where all ranks are.
        session: of the exchange.
        ports: of all ranks.
        plan: the buckets of each step.
    """

    at: Places
    session: int
    ports: Ports
    plan: plan.Plan

    def require_same(self, ours: plan.Plan) -> None:
        """InputError where this rank's buckets are others."""
        if ours != self.plan:
            theirs, mine = ([each.elements for each in buckets] for buckets in (self.plan, ours))
            raise InputError(
                f"the buckets of the rank that returns are {mine}, and the others' {theirs}; "
                "valid: the same model and DistributedDataParallel"
            )


@dataclass(frozen=True)
class Admission:
    """From which part and step on a rank takes part, and what rank 0's script has to say to it."""

    part: int
    step: int
    note: str


def keep_place(meeting: Meeting, settings: Settings, place: Place) -> None:
    """Rank 0: for ranks that come back."""
    facts = {
        "terms": settings.terms(torch.__version__),
        "addresses": place.at.addresses,
        "keys": place.at.identity is not None,
        "chunk_bytes": place.at.chunk_bytes,
        "session": place.session,
        "control": place.ports.control,
        "data": place.ports.data,
        "plan": [each.facts() for each in place.plan],
    }
    meeting.leave(_PLACE, facts)


def place_of(meeting: Meeting, settings: Settings) -> Place:
    """A rank that returns: what rank 0 has kept.

    Raises InputError where this one does not fit, PeerLost where there is nothing in time.
    """
    until_s = time.monotonic() + meeting.timeout_s
    while (facts := meeting.found(_PLACE)) is None:
        if time.monotonic() >= until_s:
            raise PeerLost("rank 0", "it keeps no place for ranks that return")
        time.sleep(_LOOK_S)
    if (differs := difference([facts["terms"], settings.terms(torch.__version__)])) is not None:
        raise InputError(differs.replace("rank 1", "the rank that returns"))
    if facts["keys"]:
        raise InputError(
            "returns: the others exchange with keys, which a new process does not have; valid: "
            "insecure=True on all ranks, where nobody else is on the network"
        )
    ranks, own = facts["addresses"], addresses.own_address(settings.interface)
    if not 0 < meeting.rank < len(ranks):
        raise InputError(f"returns: rank {meeting.rank}; valid: 1 to {len(ranks) - 1}")
    if own != ranks[meeting.rank]:
        raise InputError(
            f"returns: rank {meeting.rank} was at {ranks[meeting.rank]} and is at {own}; valid: "
            "the same address"
        )
    meeting.world = len(ranks)
    buckets = [
        plan.Bucket(each["elements"], each["dtype"], tuple(each["slots"])) for each in facts["plan"]
    ]
    return Place(
        Places(ranks, facts["session"], None, facts["chunk_bytes"]),
        facts["session"],
        Ports(facts["control"], facts["data"]),
        tuple(buckets),
    )


def ask(meeting: Meeting) -> str:
    """A rank that returns: rank 0 may let it in. Returns what tells this time from another."""
    ticket = secrets.token_hex(8)
    meeting.leave(f"asks/{meeting.rank}", ticket)
    return ticket


def admit(meeting: Meeting, rank: int, admission: Admission) -> None:
    """Rank 0: says to a rank that it is let in."""
    said = {"part": admission.part, "step": admission.step, "note": admission.note}
    meeting.leave(f"admitted/{rank}/{meeting.found(f'asks/{rank}')}", said)


def admitted(meeting: Meeting, ticket: str, failure: Callable[[], Exception | None]) -> Admission:
    """A rank that returns: waits until it is let in; raises the `failure` that comes instead."""
    until_s = time.monotonic() + meeting.timeout_s
    while (said := meeting.found(f"admitted/{meeting.rank}/{ticket}")) is None:
        if (failed := failure()) is not None:
            raise failed
        if time.monotonic() >= until_s:
            raise PeerLost("rank 0", f"it has let nobody in for {meeting.timeout_s:g} s")
        time.sleep(_LOOK_S)
    return Admission(said["part"], said["step"], said["note"])
