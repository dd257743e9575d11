"""Bounded-loss gradient transport: sends float32 payloads and may give up a bounded part of each.

It imports nothing else of the project except `testbed.shared`. One
endpoint is the server, the others are workers. They send payloads in numbered transfers. A minimal
round between a server at 127.0.0.1 and one worker at 127.0.0.2, which share `session`, a random
32-bit number (addresses beyond one system need `credentials`, or `insecure=True`):

    layout = PayloadLayout([("conv.weight", 864), ("conv.bias", 32)])
    common = {"session": session, "protocol": preset("dblp"), "layout": layout, "rate_bps": 95e6}

    # the server                                        # the worker
    config = EndpointConfig(                            config = EndpointConfig(
        name="server", is_server=True,                      name="worker-1", is_server=False,
        bind_address="127.0.0.1",                           bind_address="127.0.0.2",
        peers={"worker-1": "127.0.0.2"}, **common)          peers={"server": "127.0.0.1"}, **common)
    with open_endpoint(config) as endpoint:             with open_endpoint(config) as endpoint:
        buffer = layout.new_buffer()                        buffer = layout.new_buffer()
        gather = Leg.GATHER.transfer(0)                     layout.floats(buffer)[:] = gradient
        report = endpoint.receive(                          endpoint.send(
            gather, 0.008, {"worker-1": buffer}                 Leg.GATHER.transfer(0),
        )["worker-1"]                                           {"server": buffer})
        arrived = layout.element_mask(report.received)
        layout.floats(buffer)[~arrived] = 0.0           # The broadcast goes the other way, with
                                                        # Leg.BROADCAST.transfer(0).

Instead of a number, `receive` also takes `protocol.gather.stop_rule(critical)`: the tolerance
policy's rule for the current phase. When a peer dies, the calls that need it raise PeerLost.

A protocol is a `ProtocolConfig`: one entry of each axis. `preset(NAME)` gives the published ones.
Each axis is a registry, to which you add: POLICIES (when a receiver may stop), REPAIRS, ORDERS,
CONGESTION_CONTROLS, MARKS (what switches are to drop last). CODECS, how chunks hold values, has
what C knows, too: with one, `layout.write` and `layout.read` stand for `layout.floats`.
"""

from testbed.transport.codec import CODECS
from testbed.transport.congestion import CONGESTION_CONTROLS, CongestionControl
from testbed.transport.congestion.base import Feedback
from testbed.transport.errors import PeerLost, ProtocolError, TransportError
from testbed.transport.events import Observation, Observer, TransferReport
from testbed.transport.layout import Leg, PayloadLayout
from testbed.transport.net.config import EndpointConfig
from testbed.transport.net.endpoint import Endpoint, Handle, open_endpoint
from testbed.transport.net.tls import Credentials
from testbed.transport.order import MARKS, ORDERS, ChunkOrder, Marks, OrderContext
from testbed.transport.presets import POLICIES, PRESETS, ProtocolConfig, as_policy, preset
from testbed.transport.repair import REPAIRS
from testbed.transport.repair.base import ReceiverRepair, Repair, SenderRepair
from testbed.transport.sending_path import SendingPath
from testbed.transport.tolerance import (
    Fixed,
    FractionRule,
    Phased,
    Progress,
    StopRule,
    StopRuleFactory,
    TolerancePolicy,
)

__all__ = [
    "CODECS",
    "CONGESTION_CONTROLS",
    "MARKS",
    "ORDERS",
    "POLICIES",
    "PRESETS",
    "REPAIRS",
    "ChunkOrder",
    "CongestionControl",
    "Credentials",
    "Endpoint",
    "EndpointConfig",
    "Feedback",
    "Fixed",
    "FractionRule",
    "Handle",
    "Leg",
    "Marks",
    "Observation",
    "Observer",
    "OrderContext",
    "PayloadLayout",
    "PeerLost",
    "Phased",
    "Progress",
    "ProtocolConfig",
    "ProtocolError",
    "ReceiverRepair",
    "Repair",
    "SenderRepair",
    "SendingPath",
    "StopRule",
    "StopRuleFactory",
    "TolerancePolicy",
    "TransferReport",
    "TransportError",
    "as_policy",
    "open_endpoint",
    "preset",
]
