"""Delay, jitter and loss in the middle of links: by netem, or by a relay where there is no netem.

A link with any of them is two veth pairs with their inner ends in one namespace; what arrives at
one inner end leaves, later, at the other. Rate and queue stay at the outer ends.
"""

from testbed.lab.delay.relay_client import Relay, RelayClient
from testbed.lab.delay.settings import DelaySettings, DirectionCounters, Middle, RelayReport

__all__ = [
    "DelaySettings",
    "DirectionCounters",
    "Middle",
    "Relay",
    "RelayClient",
    "RelayReport",
]
