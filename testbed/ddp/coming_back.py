"""How a rank that was lost finds its place again, and hears from which step on it takes part.

Rank 0 keeps the place in the store. A rank that returns joins rank 0's endpoint and waits, until
rank 0's script lets it in between two steps and says where its parameters are.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from testbed.ddp.meeting import Meeting
from testbed.ddp.owner_side import OwnerSide
from testbed.ddp.places import Identity, Places, Ports, own_address
from testbed.ddp.plan import Bucket, Plan
from testbed.ddp.settings import Settings, difference
from testbed.ddp.side import name_of
from testbed.shared.input_error import InputError
from testbed.transport import PeerLost

_PLACE = "place"
_LOOK_S = 0.1


@dataclass(frozen=True)
class Place:
    """What the others' exchange is like."""

    at: Places
    session: int
    ports: Ports
    plan: Plan

    def require_same(self, ours: Plan) -> None:
        """InputError where this rank's buckets are others."""
        if ours != self.plan:
            theirs, mine = ([each.elements for each in buckets] for buckets in (self.plan, ours))
            raise InputError(
                f"the buckets of the rank that returns are {mine}, and the others' {theirs}; "
                "valid: the same model and DistributedDataParallel"
            )


class Door:
    """Rank 0's: keeps the place of ranks that are lost, and lets them in again."""

    def __init__(self, meeting: Meeting, settings: Settings, place: Place, own: OwnerSide) -> None:
        """`own` is this rank's end of the exchange at `place`."""
        self._meeting = meeting
        self._own = own
        self._tickets: set[str] = set()  # of those whose certificates are trusted
        identity = place.at.identity
        self._keys = identity is not None
        facts = {
            "terms": settings.terms(torch.__version__),
            "addresses": place.at.addresses,
            "certificates": None if identity is None else identity.certificates(),
            "chunk_bytes": place.at.chunk_bytes,
            "session": place.session,
            "control": place.ports.control,
            "data": place.ports.data,
            "plan": [each.facts() for each in place.plan],
        }
        meeting.leave(_PLACE, facts)

    @property
    def returning(self) -> frozenset[int]:
        """Ranks that were lost and have joined again."""
        for rank in self._own.lost if self._keys else ():
            asks = self._meeting.found(f"asks/{rank}")
            if asks is not None and asks["ticket"] not in self._tickets:
                self._own.trust(asks["certificates"][name_of(rank)])
                self._tickets.add(asks["ticket"])
                self._meeting.leave(f"trusted/{rank}/{asks['ticket']}", True)
        return self._own.returning

    def readmit(self, step: int, note: str) -> None:
        """Lets them take part from this step on, which is the next; InputError for nobody."""
        ranks = self._own.returning
        if not ranks:
            raise InputError("readmit: no rank is returning; valid: where `returning` names one")
        said = {"part": self._own.readmit(ranks), "step": step, "note": note}
        for rank in ranks:
            ticket = self._meeting.found(f"asks/{rank}")["ticket"]
            self._meeting.leave(f"admitted/{rank}/{ticket}", said)


def _awaited(
    meeting: Meeting,
    key: str,
    reason: str,
    failure: Callable[[], Exception | None] = lambda: None,
) -> Any:
    """What somebody leaves there; PeerLost of rank 0 where nobody does in time."""
    until_s = time.monotonic() + meeting.timeout_s
    while (answer := meeting.found(key)) is None:
        if (failed := failure()) is not None:
            raise failed
        if time.monotonic() >= until_s:
            raise PeerLost("rank 0", reason)
        time.sleep(_LOOK_S)
    return answer


def place_of(meeting: Meeting, settings: Settings) -> Place:
    """What rank 0 has kept for a rank that returns; InputError where this one does not fit."""
    facts = _awaited(meeting, _PLACE, "it keeps no place for ranks that return")
    if (differs := difference([facts["terms"], settings.terms(torch.__version__)])) is not None:
        raise InputError(differs.replace("rank 1", "the rank that returns"))
    ranks, own = facts["addresses"], own_address(settings.interface)
    if not 0 < meeting.rank < len(ranks):
        raise InputError(f"returns: rank {meeting.rank}; valid: 1 to {len(ranks) - 1}")
    if own != ranks[meeting.rank]:
        raise InputError(
            f"returns: rank {meeting.rank} was at {ranks[meeting.rank]} and is at {own}; valid: "
            "the same address"
        )
    meeting.world = len(ranks)
    buckets = [
        Bucket(each["elements"], each["dtype"], tuple(each["slots"])) for each in facts["plan"]
    ]
    identity = None
    if facts["certificates"] is not None:
        identity = Identity(meeting.rank)
        identity.meet([facts["certificates"]])
    return Place(
        Places(ranks, facts["session"], identity, facts["chunk_bytes"]),
        facts["session"],
        Ports(facts["control"], facts["data"]),
        tuple(buckets),
    )


class Asking:
    """A rank that returns, while it waits for rank 0."""

    def __init__(
        self, meeting: Meeting, place: Place, failure: Callable[[], Exception | None]
    ) -> None:
        """Asks to be let in. While it waits it raises the `failure` that comes meanwhile."""
        self._meeting = meeting
        self._failure = failure
        self._ticket = secrets.token_hex(8)  # tells this time from another
        identity = place.at.identity
        certificates = None if identity is None else identity.certificates()
        asks = {"ticket": self._ticket, "certificates": certificates}
        meeting.leave(f"asks/{meeting.rank}", asks)
        if identity is not None:
            self._awaited("trusted")

    def admitted(self) -> dict[str, Any]:
        """From which `part` and `step` on it takes part, and rank 0's `note`; PeerLost in time."""
        admission: dict[str, Any] = self._awaited("admitted")
        return admission

    def _awaited(self, what: str) -> Any:
        key = f"{what}/{self._meeting.rank}/{self._ticket}"
        reason = f"it has let nobody in for {self._meeting.timeout_s:g} s"
        return _awaited(self._meeting, key, reason, self._failure)
