"""What happens to one path while congestion controls send over it, in virtual time.

A `Scenario` has a bottleneck and flows without end; it runs for round trips and says what share of
the rate was delivered in each.
"""

import math
import statistics

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.transport.policies.congestion import CONGESTION_CONTROLS
from testbed.transport.policies.repair import REPAIRS
from tests.transport.link_flows import DATAGRAM_BYTES, AckedFlow
from tests.transport.link_transfers import TransferFlow
from tests.transport.virtual import layout_of

ACKS = "acks"  # in place of a repair: one acknowledgement per datagram
_CHUNKS = 100_000  # more than any scenario sends
# By how far the share of a single round trip may fall short where the mean of five does not.
_ROUND_SLACK = 0.05


class Scenario:
    """Flows of one kind through a bottleneck that holds `queue` bandwidth-delay products.

    Attributes:
        link: the bottleneck; its `loss` can be set.
        flows: in the order of their starts, which are `stagger_s` apart.
    """

    def __init__(
        self,
        control: str,
        repair: str = ACKS,
        *,
        rate_bps: float,
        rtt_s: float,
        flows: int = 1,
        stagger_s: float = 0.0,
        queue: float = 2.0,
        loss: float = 0.0,
        total_bytes: float = math.inf,
    ) -> None:
        """`repair` is the name of one, with the real sender and receiver, or ACKS."""
        self.simulation = Simulation()
        self._total_bytes = total_bytes
        self.rate_bps = rate_bps
        self.rtt_s = rtt_s
        self.product_bytes = rate_bps * rtt_s / 8
        self.link = Link(
            self.simulation,
            rate_bps=rate_bps,
            delay_s=rtt_s / 2,
            queue_bytes=queue * self.product_bytes,
            loss=loss,
            seed=1,
        )
        self.flows = [self._flow(control, repair) for _ in range(flows)]
        for number, flow in enumerate(self.flows):
            flow.start(number * stagger_s)

    def _flow(self, name: str, repair: str) -> AckedFlow | TransferFlow:
        control = CONGESTION_CONTROLS.create(
            name, rate_bps=self.rate_bps, datagram_bytes=DATAGRAM_BYTES
        )
        links, return_delay_s = [self.link], self.rtt_s / 2
        if repair == ACKS:
            return AckedFlow(
                self.simulation,
                links,
                control,
                return_delay_s=return_delay_s,
                total_bytes=self._total_bytes,
            )
        layout = layout_of(_CHUNKS, chunk_bytes=1456)
        return TransferFlow(
            self.simulation,
            links,
            control,
            repair=REPAIRS.create(repair),
            layout=layout,
            payload=layout.new_buffer(),
            return_delay_s=return_delay_s,
        )

    @property
    def acked(self) -> list[AckedFlow]:
        """The flows, where each datagram is acknowledged."""
        return [flow for flow in self.flows if isinstance(flow, AckedFlow)]

    def run(self, round_trips: float) -> list[float]:
        """The share of the rate that came out of the bottleneck in each round trip from now on."""
        shares = []
        for _ in range(math.ceil(round_trips)):
            busy_s, lost = self.link.busy_s, self.link.lost
            self.simulation.run(until_s=self.simulation.now_s + self.rtt_s)
            lost_s = (self.link.lost - lost) * DATAGRAM_BYTES * 8 / self.link.rate_bps
            shares.append((self.link.busy_s - busy_s - lost_s) / self.rtt_s)
        return shares

    def run_watching_queue(self, round_trips: int) -> tuple[float, float]:
        """The mean share, and the mean queue in bandwidth-delay products."""
        shares, queues = [], []
        for _ in range(round_trips):
            shares += self.run(1)
            queues.append(self.link.queued_bytes / self.product_bytes)
        return statistics.mean(shares), statistics.mean(queues)


def burst(scenario: Scenario, *, loss: float, round_trips: float, before: float = 100) -> None:
    """Lets the flows settle for `before` round trips, then loses so much of what comes out."""
    scenario.run(before)
    scenario.link.loss = loss
    scenario.run(round_trips)
    scenario.link.loss = 0.0


def back_after(shares: list[float], *, level: float = 0.95) -> int | None:
    """The round trip from which on five in a row deliver `level`, on average; None for never."""
    for begin in range(len(shares) - 4):
        five = shares[begin : begin + 5]
        if sum(five) / 5 >= level and five[0] >= level - _ROUND_SLACK:
            return begin
    return None
