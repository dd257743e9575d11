"""The configuration of an endpoint."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import NoneType
from typing import Any

from testbed.shared.input_error import shown
from testbed.transport.events import Observer
from testbed.transport.joining import SERVER
from testbed.transport.layout import PayloadLayout, layout_of
from testbed.transport.messages import Cipher, check_u32
from testbed.transport.net.tls import TAG_BYTES, Credentials, aes
from testbed.transport.pacing import LONGEST_QUANTUM_S, QUANTUM_S
from testbed.transport.presets import ProtocolConfig
from testbed.transport.settings import LeaveOut
from testbed.transport.wire import DATA_PORTS

# What a field of each annotation takes, and the words for it.
_KINDS: Mapping[Any, tuple[Any, str]] = {
    str: (str, "a text"),
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    float | None: ((Real, NoneType), "a number or None"),
    Mapping[str, str]: (Mapping, "a mapping of names to addresses"),
    ProtocolConfig: (ProtocolConfig, "a ProtocolConfig, such as preset('dblp')"),
    PayloadLayout: (PayloadLayout, "a PayloadLayout"),
    Credentials | None: ((Credentials, NoneType), "Credentials or None"),
}


@dataclass(frozen=True, kw_only=True)
class EndpointConfig:
    """One side of the transport.

    Attributes:
        session: 32 random bits of the run; what has another session is dropped.
        name: this side's name; the server's is `server`.
        bind_address: address or host's name of this side. It decides between IPv4 and IPv6.
        peers: name -> address or host's name: all workers, or a worker's server.
        is_server: the server listens, workers connect.
        protocol, layout: equal on all sides, and of the same codec.
        rate_bps: the pace towards one peer, in bits per second on the wire; math.inf for unpaced.
            The congestion control `fixed` takes it as its rate. Kernel TCP ignores it.
        quantum_s: how much of its rate a paced sender sends at a time, at most 1 s; above 1 ms
            only with `queue_bytes`, and a congestion control that does not measure the path.
        queue_bytes: this sender's share of the smallest queue on the way, of which a batch takes a
            quarter at most. math.inf: unknown; batches then are of 1 ms.
        control_port: the port on which the server accepts its workers.
        data_port: the server's data ports are data_port + i for worker i in the order of `peers`;
            a worker's UDP port is data_port itself (0 lets the kernel choose).
        credentials: this side's key and its peers' certificates, made by `keys`. Control messages
            then travel over TLS, and every datagram carries 16 bytes that only this peer can have
            made; control messages in datagrams can be read.
        encrypted: with credentials, whether payloads are encrypted, too (AES-256-GCM), where both
            sides have this and a libcrypto.so.3. Else they can be read.
        insecure: allows addresses beyond this system without credentials.
        seed: seeds the random choices of this side; give each side its own.
        segmentation: whether the kernel may cut large sends into datagrams (UDP_SEGMENT), behind
            the interface's queue: turn it off where queues matter. `tcp` ignores it.
        peer_timeout_s: how long a peer that owes an answer or data may be silent, a transfer may
            stand still, and control messages may wait for a peer to read them.
        late_s: how long a peer that answers may take to begin with a transfer, or to take one; a
            receiver may then also give up a transfer before its sender begins. None on all sides
            or on none; None: peer_timeout_s to begin.
        connect_timeout_s: how long `open` waits for the peers, and the server for the data
            connection of a worker that joins again.
        transfers_in_flight: how many transfers may be under way with a peer in each direction.
        tensor_by_tensor: whether transfers carry one tensor of the layout each, in turn: that of
            round n (`Leg.round_of`) the one of index n modulo their number, with buffers of
            `layout.of_tensors[index]`. Equal on all sides.
        observer: is called with the congestion state of each sending path, at most every 10 ms per
            peer, but not by kernel TCP.
        leave_out: is called with the number of datagrams that are about to be sent, and tells which
            of them vanish before the socket, at no cost on the wire. Not for `tcp`.
        survive_peers: whether the server goes on with the other workers when it loses one; `lost`
            then tells which are gone.
    """

    session: int
    name: str
    bind_address: str
    peers: Mapping[str, str]
    is_server: bool
    protocol: ProtocolConfig
    layout: PayloadLayout
    rate_bps: float
    quantum_s: float = QUANTUM_S
    queue_bytes: float = math.inf
    control_port: int = 46999
    data_port: int = DATA_PORTS[0]
    credentials: Credentials | None = None
    encrypted: bool = False
    insecure: bool = False
    seed: int = 0
    segmentation: bool = True
    peer_timeout_s: float = 30.0
    late_s: float | None = None
    connect_timeout_s: float = 10.0
    transfers_in_flight: int = 4
    tensor_by_tensor: bool = False
    observer: Observer | None = None
    leave_out: LeaveOut | None = None
    survive_peers: bool = False

    def __post_init__(self) -> None:
        for entry in fields(self):
            kind, words = _KINDS.get(entry.type, (object, "a function, or None"))
            value = getattr(self, entry.name)
            # Python counts True among the numbers.
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise ValueError(f"{entry.name} is {shown(value)}; valid: {words}")
        check_u32("session", self.session)
        check_u32("seed", self.seed)
        self._check_names()
        is_tcp = self.protocol.carrier == "tcp"
        unlimited, finite = "above 0; math.inf for no limit", "above 0, finite"
        lowest = 1 if self.is_server else 0
        highest = 65535 - (len(self.peers) - 1 if self.is_server else 0)
        late_s = 1.0 if self.late_s is None else self.late_s
        for name, is_valid, words in (
            ("rate_bps", self.rate_bps > 0, unlimited),
            ("queue_bytes", self.queue_bytes > 0, unlimited),
            (
                "quantum_s",
                0 < self.quantum_s <= LONGEST_QUANTUM_S,
                f"above 0, at most {LONGEST_QUANTUM_S:g}",
            ),
            ("peer_timeout_s", 0 < self.peer_timeout_s < math.inf, finite),
            ("connect_timeout_s", 0 < self.connect_timeout_s < math.inf, finite),
            ("late_s", 0 < late_s < math.inf, finite),
            ("transfers_in_flight", self.transfers_in_flight >= 1, "1 or more"),
            ("control_port", 1 <= self.control_port <= 65535, "1 to 65535"),
            ("data_port", lowest <= self.data_port <= highest, f"{lowest} to {highest}"),
            ("leave_out", self.leave_out is None or not is_tcp, "None for tcp"),
            ("encrypted", self.credentials is not None or not self.encrypted, "with credentials"),
        ):
            if not is_valid:
                raise ValueError(f"{name} is {getattr(self, name)}; valid: {words}")
        if self.layout.codec != self.protocol.codec:
            raise ValueError(
                f"layout has the codec {self.layout.codec}; "
                f"valid: {self.protocol.codec}, as the protocol has it"
            )
        if self.tensor_by_tensor and (empty := [name for name, n in self.layout.tensors if not n]):
            raise ValueError(
                f"tensor_by_tensor: the tensor {empty[0]!r} has no elements; valid: 1 or more"
            )
        if self.credentials is not None and is_tcp:
            raise ValueError(
                "the protocol tcp sends its payloads in clear, so credentials would protect "
                "nothing; use another protocol, or no credentials and insecure=True"
            )

    def _check_names(self) -> None:
        peers = self.peers
        if not peers:
            raise ValueError("peers is empty; at least one is needed")
        for peer, address in peers.items():
            if not (isinstance(peer, str) and isinstance(address, str)):
                raise ValueError(
                    f"peers has {shown({peer: address})}; valid: a name and an address, both texts"
                )
        if not self.is_server and set(peers) != {SERVER}:
            raise ValueError(f"a worker's only peer is {SERVER!r}, not {', '.join(peers)}")
        if self.is_server and SERVER in peers:
            raise ValueError(f"peers has {SERVER!r}; valid: the names of workers")
        if self.is_server != (self.name == SERVER):
            valid = f"{SERVER!r} for the server" if self.is_server else "a worker's name"
            raise ValueError(f"name is {shown(self.name)}; valid: {valid}")

    @property
    def tag_bytes(self) -> int:
        return TAG_BYTES if self.credentials is not None else 0

    @property
    def cipher(self) -> Cipher:
        """The best that this side can, and may use."""
        encrypts = self.credentials is not None and self.encrypted and aes() is not None
        return Cipher.AES_256_GCM if encrypts else Cipher.BLAKE2B

    @property
    def terms(self) -> str:
        """Says what must be equal on both sides besides the layout."""
        protocol = self.protocol
        carried = "" if protocol.keep == 1 else f", keeping {protocol.keep:g} of the chunks"
        carried += ", tensor by tensor" if self.tensor_by_tensor else ""
        if protocol.carrier == "tcp":
            return f"kernel TCP with {protocol.congestion_control}{carried}"
        # A receiver learns from its own how soon the sender's needs an answer.
        measured = "the path" if protocol.measures else "nothing"
        control = ", its control in datagrams" if protocol.control == "datagrams" else ""
        return (
            f"repair {protocol.repair}, a congestion control that measures {measured}, "
            f"and {'tags' if self.tag_bytes else 'nothing'} appended to datagrams{control}{carried}"
        )

    def layout_of(self, transfer: int) -> PayloadLayout:
        return layout_of(transfer, self.layout, tensor_by_tensor=self.tensor_by_tensor)

    def local_data_port(self, peer: str) -> int:
        if not self.is_server:
            return self.data_port
        return self.data_port + list(self.peers).index(peer)
