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

from testbed.ddp.endpoint_thread import OwnerThread, name_of
from testbed.ddp.places import Identity, Places, Ports, own_address
from testbed.ddp.plan import Bucket, Plan
from testbed.ddp.rendezvous import Rendezvous
from testbed.ddp.settings import Settings, difference
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
            theirs, mine = (
                [bucket.elements for bucket in buckets] for buckets in (self.plan, ours)
            )
            raise InputError(
                f"the buckets of the rank that returns are {mine}, and the others' {theirs}; "
                "valid: the same model and DistributedDataParallel"
            )


class Readmissions:
    """Rank 0's: keeps the place of ranks that are lost, and lets them in again."""

    def __init__(
        self, rendezvous: Rendezvous, settings: Settings, place: Place, own: OwnerThread
    ) -> None:
        """`own` is this rank's end of the exchange at `place`."""
        self._rendezvous = rendezvous
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
        rendezvous.leave(_PLACE, facts)

    @property
    def returning(self) -> frozenset[int]:
        """Ranks that were lost and have joined again."""
        for rank in self._own.lost if self._keys else ():
            asks = self._rendezvous.found(f"asks/{rank}")
            if asks is not None and asks["ticket"] not in self._tickets:
                self._own.trust(asks["certificates"][name_of(rank)])
                self._tickets.add(asks["ticket"])
                self._rendezvous.leave(f"trusted/{rank}/{asks['ticket']}", True)
        return self._own.returning

    def readmit(self, step: int, note: str) -> None:
        """Lets them take part from this step on, which is the next; InputError for nobody."""
        ranks = self._own.returning
        if not ranks:
            raise InputError("readmit: no rank is returning; valid: where `returning` names one")
        said = {"part": self._own.readmit(ranks), "step": step, "note": note}
        for rank in ranks:
            ticket = self._rendezvous.found(f"asks/{rank}")["ticket"]
            self._rendezvous.leave(f"admitted/{rank}/{ticket}", said)


def _awaited(
    rendezvous: Rendezvous,
    key: str,
    reason: str,
    failure: Callable[[], Exception | None] = lambda: None,
) -> Any:
    """What somebody leaves there; PeerLost of rank 0 where nobody does in time."""
    until_s = time.monotonic() + rendezvous.timeout_s
    while (answer := rendezvous.found(key)) is None:
        if (failed := failure()) is not None:
            raise failed
        if time.monotonic() >= until_s:
            raise PeerLost("rank 0", reason)
        time.sleep(_LOOK_S)
    return answer


def place_of(rendezvous: Rendezvous, settings: Settings) -> Place:
    """What rank 0 has kept for a rank that returns; InputError where this one does not fit."""
    facts = _awaited(rendezvous, _PLACE, "it keeps no place for ranks that return")
    if (differs := difference([facts["terms"], settings.terms(torch.__version__)])) is not None:
        raise InputError(differs.replace("rank 1", "the rank that returns"))
    ranks, own = facts["addresses"], own_address(settings.interface)
    if not 0 < rendezvous.rank < len(ranks):
        raise InputError(f"returns: rank {rendezvous.rank}; valid: 1 to {len(ranks) - 1}")
    if own != ranks[rendezvous.rank]:
        raise InputError(
            f"returns: rank {rendezvous.rank} was at {ranks[rendezvous.rank]} and is at {own}; "
            "valid: the same address"
        )
    rendezvous.world = len(ranks)
    buckets = [
        Bucket(each["elements"], each["dtype"], tuple(each["slots"])) for each in facts["plan"]
    ]
    identity = None
    if facts["certificates"] is not None:
        identity = Identity(rendezvous.rank)
        identity.make_keys()
        identity.meet([facts["certificates"]])
    return Place(
        Places(ranks, facts["session"], identity, facts["chunk_bytes"]),
        facts["session"],
        Ports(facts["control"], facts["data"]),
        tuple(buckets),
    )


def ask(rendezvous: Rendezvous, place: Place) -> str:
    """Asks rank 0 to let this rank in; returns a ticket, which tells this time from another."""
    ticket, identity = secrets.token_hex(8), place.at.identity
    certificates = None if identity is None else identity.certificates()
    rendezvous.leave(f"asks/{rendezvous.rank}", {"ticket": ticket, "certificates": certificates})
    return ticket


def answer(
    rendezvous: Rendezvous, ticket: str, what: str, failure: Callable[[], Exception | None]
) -> Any:
    """Rank 0's answer: `trusted`, where there are keys, and then `admitted`; PeerLost for none."""
    reason = f"it has let nobody in for {rendezvous.timeout_s:g} s"
    return _awaited(rendezvous, f"{what}/{rendezvous.rank}/{ticket}", reason, failure)
