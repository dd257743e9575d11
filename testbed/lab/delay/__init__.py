"""Delay, jitter and loss in the middle of links: by netem, or by a relay where the kernel has none.

Such a link is two veth pairs with their inner ends in one namespace; what arrives at one inner end
leaves later at the other. It may import `testbed.lab.kernel`, `testbed.lab.helpers` and
`testbed.transport`. To add a property: a field of `delay_settings.DelaySettings`, which both
`netem` and `relayed_direction` must carry out.
"""

from testbed.lab.delay.delay_settings import DelaySettings, Middle
from testbed.lab.delay.relay_client import Relay, RelayClient

__all__ = ["DelaySettings", "Middle", "Relay", "RelayClient"]
