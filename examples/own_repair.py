"""A repair: selective acknowledgements, but lost chunks wait until all others are sent.

`repair: ./own_repair.py`. It changes one choice of the built-in `selective`; a repair from scratch
has two halves of its own, see `testbed/transport/policies/repair/passes.py`.
"""

from dataclasses import dataclass

from testbed.transport.core.order import Arranger
from testbed.transport.core.path_estimates import PathEstimates
from testbed.transport.policies.repair import Selective
from testbed.transport.policies.repair.selective import SelectiveSender


class LostLastSender(SelectiveSender):
    lost_first = False


@dataclass(frozen=True, kw_only=True)
class LostLast(Selective):
    """As `selective`, which sends lost chunks first."""

    def sender(
        self, *, transfer: int, chunk_count: int, arrange: Arranger, estimates: PathEstimates
    ) -> LostLastSender:
        return LostLastSender(
            transfer=transfer, chunk_count=chunk_count, arrange=arrange, estimates=estimates
        )
