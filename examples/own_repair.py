"""A repair: selective acknowledgements, but lost chunks wait until all others are sent.

`repair: ./own_repair.py`. It changes one choice of the built-in `selective`; a repair from scratch
has two halves of its own, see `testbed/transport/repair/passes.py`.
"""

from dataclasses import dataclass
from typing import Any

from testbed.transport.repair import Selective
from testbed.transport.repair.selective import SelectiveSender


class LostLastSender(SelectiveSender):
    lost_first = False
    plannable = SelectiveSender.plannable  # what may be planned does not depend on the order


@dataclass(frozen=True, kw_only=True)
class LostLast(Selective):
    """As `selective`, which sends lost chunks first."""

    def sender(self, **common: Any) -> LostLastSender:
        return LostLastSender(**common)
