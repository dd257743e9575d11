"""In which order are chunks sent? `base` says what an order is and how to add one."""

from testbed.transport.order.base import ChunkOrder, OrderContext
from testbed.transport.order.in_order import InOrder
from testbed.transport.order.largest_magnitude_first import LargestMagnitudeFirst
from testbed.transport.order.layer_priority import LayerPriority
from testbed.transport.order.rotating import Rotating
from testbed.transport.order.shuffled import Shuffled
from testbed.transport.registry import Registry

ORDERS: Registry[ChunkOrder] = Registry(
    "chunk order",
    {
        "in-order": InOrder,
        "rotating": Rotating,
        "shuffled": Shuffled,
        "largest-magnitude-first": LargestMagnitudeFirst,
        "layer-priority": LayerPriority,
    },
)

__all__ = [
    "ORDERS",
    "ChunkOrder",
    "InOrder",
    "LargestMagnitudeFirst",
    "LayerPriority",
    "OrderContext",
    "Rotating",
    "Shuffled",
]
