"""How is what was lost sent again? `base` says what a repair is and how to add one."""

from testbed.transport.registry import Registry
from testbed.transport.repair.base import Arrange, ReceiverRepair, Repair, SenderRepair
from testbed.transport.repair.passes import Passes

REPAIRS: Registry[Repair] = Registry(
    "repair",
    {
        "passes": Passes,
    },
)

__all__ = ["REPAIRS", "Arrange", "Passes", "ReceiverRepair", "Repair", "SenderRepair"]
