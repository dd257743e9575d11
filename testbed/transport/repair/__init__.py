"""How is what was lost sent again? `base` says what a repair is and how to add one."""

from testbed.transport.registry import Registry
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
