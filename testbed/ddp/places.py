"""Where each rank is, and how it proves who it is: what all ranks tell each other at the start."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from testbed.ddp import addresses
from testbed.ddp.meeting import Meeting
from testbed.ddp.settings import Settings, difference
from testbed.ddp.side import SERVER, name_of
from testbed.shared.input_error import InputError
from testbed.transport import Credentials
from testbed.transport.net import keys


class Identity:
    """This rank's keys and the others' certificates, in a private folder."""

    def __init__(self, rank: int) -> None:
        """Makes the keys; InputError where the program openssl is missing."""
        self._rank = rank
        self._folder = TemporaryDirectory(prefix="bounded-loss-")
        self._at = Path(self._folder.name)
        keys.make(self._at, [SERVER, name_of(rank)])

    def certificates(self) -> dict[str, str]:
        """For the others: of this rank as an owner and as a worker, as PEM texts."""
        names = (SERVER, name_of(self._rank))
        return {name: (self._at / f"{name}.crt").read_text() for name in names}

    def meet(self, certificates: list[Mapping[str, str]]) -> None:
        """Keeps all ranks' certificates."""
        for rank, theirs in enumerate(certificates):
            (self._at / str(rank)).mkdir()
            for name in (SERVER, name_of(rank)):
                (self._at / str(rank) / f"{name}.crt").write_text(theirs[name])

    def credentials(self, owner: int, world: int) -> Credentials:
        """For the exchange with one owner: its own as the server, or a worker's."""
        if owner == self._rank:
            name = SERVER
            others = [rank for rank in range(world) if rank != owner]
            trusted = [self._at / str(rank) / f"{name_of(rank)}.crt" for rank in others]
        else:
            name = name_of(self._rank)
            trusted = [self._at / str(owner) / f"{SERVER}.crt"]
        return Credentials(self._at / f"{name}.crt", self._at / f"{name}.key", tuple(trusted))

    def close(self) -> None:
        """Deletes the keys."""
        self._folder.cleanup()


@dataclass(frozen=True)
class Places:
    """What is known of all ranks.

    Attributes:
        addresses: by rank.
        ports: the first of each rank's: for control messages; then one for each other rank's data.
        session: a number that all ranks share and nobody else knows.
        identity: this rank's keys; None where no address is beyond this machine, or `insecure`.
    """

    addresses: list[str]
    ports: list[int]
    session: int
    identity: Identity | None

    def credentials(self, owner: int) -> Credentials | None:
        """For the exchange with one owner."""
        if self.identity is None:
            return None
        return self.identity.credentials(owner, len(self.addresses))

    def close(self) -> None:
        if self.identity is not None:
            self.identity.close()


def find(settings: Settings, meeting: Meeting) -> Places:
    """Meets all ranks.

    Raises InputError, with the same line on all ranks, where they differ or one of them cannot take
    part, and PeerLost for one that does not come in time.
    """
    me: dict[str, Any] = {}
    problem = ""
    try:
        me["terms"] = settings.terms(torch.__version__)
        me["session"] = secrets.randbits(32)
        me["address"] = addresses.own_address(settings.interface)
    except InputError as error:
        problem = str(error)
    told = meeting.share("the meeting of all ranks", me, problem)
    if (differs := difference([each["terms"] for each in told])) is not None:
        raise InputError(differs)
    all_addresses = [each["address"] for each in told]
    addresses.require_reachable(all_addresses)
    inside = all(map(addresses.is_loopback, all_addresses))
    if settings.protocol.carrier == "tcp" and not (inside or settings.insecure):
        raise InputError(
            "the protocol tcp sends gradients that anybody on the way could change; valid: another "
            "protocol, or insecure=True where nobody else is on the network"
        )
    return _with_ports(settings, meeting, all_addresses, told[0]["session"], inside)


def _with_ports(
    settings: Settings, meeting: Meeting, all_addresses: list[str], session: int, inside: bool
) -> Places:
    mine, rank = all_addresses[meeting.rank], meeting.rank
    identity, port, problem = None, 0, ""
    try:
        if not (inside or settings.insecure):
            identity = Identity(rank)
        if settings.port is None:
            port = addresses.free_ports(mine, meeting.world)
        else:
            # Ranks of one machine share it.
            port = settings.port + meeting.world * all_addresses[:rank].count(mine)
            addresses.check_free(mine, port, meeting.world)
    except InputError as error:
        problem = str(error)
    certificates = identity.certificates() if identity is not None else {}
    told = meeting.share("the sharing of ports", {"port": port, "keys": certificates}, problem)
    if identity is not None:
        identity.meet([each["keys"] for each in told])
    return Places(all_addresses, [each["port"] for each in told], session, identity)
