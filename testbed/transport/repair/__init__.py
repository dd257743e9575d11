"""Repairs: how is what was lost sent again?

`base` says what one is. To add one: a file here and a line in `REPAIRS`; or a file of your own,
`repair: ./mine.py`. Imports numpy, `testbed.shared` and the transport alone.
"""

from testbed.shared.registry import Registry
from testbed.transport.repair.base import Arrange, ReceiverRepair, Repair, SenderRepair
from testbed.transport.repair.passes import Passes
from testbed.transport.repair.path_estimates import PathEstimates
from testbed.transport.repair.selective import Selective
from testbed.transport.repair.streaming import Streaming

REPAIRS: Registry[Repair] = Registry(
    "repair",
    {
        "passes": Passes,
        "selective": Selective,
        "streaming": Streaming,
    },
    own="Repair",
    base=Repair,
)

__all__ = [
    "REPAIRS",
    "Arrange",
    "Passes",
    "PathEstimates",
    "ReceiverRepair",
    "Repair",
    "Selective",
    "SenderRepair",
    "Streaming",
]
