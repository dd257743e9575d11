"""Takes lost workers back between two rounds: they get another replica's state over the network.

    server                       giver                      newcomer
    "join"      ->                                          joins the transport
                                                       <-   "joined"
    "give"      ->        <-     "giving", how many bytes
                          <-     the state
    "take"      ->                                          says nothing before it has it
    the state   ->                                          makes it its own
                                                       <-   "idle", as all others before a round

The words go out of band, as at every barrier. The state is a worker's own: a server has none. It
travels as payloads of the usual layout, without tolerance, and each is an exchange of its own.
"""

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.training.coordination import CoordinationError, Coordinator, Follower
from testbed.transport import Endpoint, Leg, PayloadLayout, PeerLost

_LOOK_S = 0.01  # how often the server looks whether newcomers have joined
_MOST_BYTES = 1 << 36  # of a state, which the server holds in memory meanwhile


@dataclass(frozen=True, kw_only=True)
class Return:
    """Workers that take part again.

    Attributes:
        workers: their names, in rank order; none if all failed meanwhile.
        giver: whose state they have.
        state_bytes: its size.
        exchanges: how many numbers of exchanges it took.
        duration_s: how long the others waited.
    """

    workers: list[str]
    giver: str
    state_bytes: int
    exchanges: int
    duration_s: float


def take_back(
    coordinator: Coordinator,
    endpoint: Endpoint,
    layout: PayloadLayout,
    *,
    number: int,
    exchange: int,
    patience_s: float,
) -> Return | None:
    """The server's side, while all others are idle before a round; None if nobody has come back.

    A newcomer that fails meanwhile is turned away, and may come again.

    Args:
        coordinator: of the run.
        endpoint: the server's.
        layout: of payloads.
        number: of the round that comes next.
        exchange: the first number that no exchange has had.
        patience_s: how long newcomers may take to join.

    Raises:
        CoordinationError: the last worker that had a state is gone.
    """
    newcomers = coordinator.newcomers()
    if not newcomers:
        return None
    began_s = time.monotonic()
    newcomers = _join(coordinator, endpoint, newcomers, began_s + patience_s)
    if not newcomers:
        return None
    giver, size, pieces = _gather(coordinator, endpoint, layout, exchange)
    facts = {"round": number, "exchange": exchange, "bytes": size}
    newcomers = [name for name in newcomers if _told(coordinator, name, "take", **facts)]
    for place, piece in enumerate(pieces):
        newcomers = _send(coordinator, endpoint, newcomers, exchange + place, piece)
    newcomers = [name for name in newcomers if _heard(coordinator, name, "idle")]
    for name in newcomers:
        coordinator.seat(name)
    return Return(
        workers=newcomers,
        giver=giver,
        state_bytes=size,
        exchanges=len(pieces),
        duration_s=time.monotonic() - began_s,
    )


def _join(
    coordinator: Coordinator, endpoint: Endpoint, newcomers: list[str], until_s: float
) -> list[str]:
    """Have newcomers join the transport; return those that have."""
    newcomers = [name for name in newcomers if _told(coordinator, name, "join")]
    while time.monotonic() < until_s and not all(map(coordinator.has_spoken, newcomers)):
        endpoint.poll(_LOOK_S)
    for name in [name for name in newcomers if not coordinator.has_spoken(name)]:
        coordinator.turn_away(name)
        newcomers.remove(name)
    return [name for name in newcomers if _heard(coordinator, name, "joined")]


def _gather(
    coordinator: Coordinator, endpoint: Endpoint, layout: PayloadLayout, exchange: int
) -> tuple[str, int, list[NDArray[np.uint8]]]:
    """The state of the first worker that can give it: whose it is, its bytes, its payloads."""
    while True:
        giver = coordinator.present[0]
        try:
            coordinator.tell(giver, "give", exchange=exchange)
            size = _size(giver, coordinator.hear(giver, "giving"))
            pieces = []
            for place in range(_count(layout, size)):
                pieces.append(layout.new_buffer())
                transfer = Leg.GATHER.transfer(exchange + place)
                endpoint.receive(transfer, 0.0, {giver: pieces[-1]})
        except (CoordinationError, PeerLost) as error:
            coordinator.lose(giver, error)
        else:
            return giver, size, pieces


def _size(giver: str, said: dict[str, Any]) -> int:
    size = said.get("bytes")
    if not isinstance(size, int) or not 0 < size <= _MOST_BYTES:
        raise CoordinationError(f"{giver}: a state of {size!r} bytes; valid: 1 to {_MOST_BYTES}")
    return size


def _send(
    coordinator: Coordinator,
    endpoint: Endpoint,
    newcomers: list[str],
    exchange: int,
    piece: NDArray[np.uint8],
) -> list[str]:
    """Send newcomers a payload; return those that have it."""
    if not newcomers:
        return []
    try:
        reached = endpoint.send(Leg.BROADCAST.transfer(exchange), dict.fromkeys(newcomers, piece))
    except PeerLost:  # all of them
        reached = {}
    for name in newcomers:
        if name not in reached:
            coordinator.turn_away(name)
    return [name for name in newcomers if name in reached]


def _told(coordinator: Coordinator, name: str, point: str, **facts: Any) -> bool:
    try:
        coordinator.tell(name, point, **facts)
    except CoordinationError:
        coordinator.turn_away(name)
        return False
    return True


def _heard(coordinator: Coordinator, name: str, point: str) -> bool:
    try:
        coordinator.hear(name, point)
    except CoordinationError:
        coordinator.turn_away(name)
        return False
    return True


# The workers' sides.


def give(
    follower: Follower,
    endpoint: Endpoint,
    layout: PayloadLayout,
    state: dict[str, Any],
    exchange: int,
) -> None:
    """Send the server a state of tensors and plain values, as it asked for by "give"."""
    data = _encode(state)
    follower.reach("giving", bytes=len(data))
    for place, piece in enumerate(_pieces(layout, data)):
        endpoint.send(Leg.GATHER.transfer(exchange + place), {"server": piece})


def take(
    follower: Follower, endpoint: Endpoint, layout: PayloadLayout
) -> tuple[dict[str, Any], int]:
    """As a newcomer that has joined the transport: return the state, and which round comes next."""
    follower.reach("joined")
    order = follower.wait("take")
    data = bytearray()
    for place in range(_count(layout, order["bytes"])):
        piece = layout.new_buffer()
        transfer = Leg.BROADCAST.transfer(order["exchange"] + place)
        endpoint.receive(transfer, 0.0, {"server": piece})
        data += piece.tobytes()[: layout.payload_bytes]
    return _decode(bytes(data[: order["bytes"]])), int(order["round"])


def _encode(state: dict[str, Any]) -> bytes:
    import torch  # imported here, because the server does not need it

    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def _decode(data: bytes) -> dict[str, Any]:
    import torch

    # Tensors and plain values alone: nothing else is unpickled.
    state: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return state


def _count(layout: PayloadLayout, size: int) -> int:
    """How many payloads hold so many bytes."""
    return -(-size // layout.payload_bytes)


def _pieces(layout: PayloadLayout, data: bytes) -> Iterator[NDArray[np.uint8]]:
    for begin in range(0, len(data), layout.payload_bytes):
        part = np.frombuffer(data[begin : begin + layout.payload_bytes], dtype=np.uint8)
        piece = layout.new_buffer()
        piece[: len(part)] = part
        yield piece
