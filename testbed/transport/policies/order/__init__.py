"""Orders of chunks: in which order is a payload sent?

`testbed.transport.core.order` says what one is. To add one: a file here and a line in `ORDERS`; or
a file of your own, `order: ./mine.py`. Imports numpy, `testbed.shared` and the transport alone.
"""

from testbed.shared.registry import Registry
from testbed.transport.core.order import ChunkOrder, OrderContext
from testbed.transport.policies.order.in_order import InOrder
from testbed.transport.policies.order.largest_magnitude_first import LargestMagnitudeFirst
from testbed.transport.policies.order.layer_priority import LayerPriority
from testbed.transport.policies.order.rotating import Rotating
from testbed.transport.policies.order.shuffled import Shuffled

ORDERS: Registry[ChunkOrder] = Registry(
    "chunk order",
    {
        "in-order": InOrder,
        "rotating": Rotating,
        "shuffled": Shuffled,
        "largest-magnitude-first": LargestMagnitudeFirst,
        "layer-priority": LayerPriority,
    },
    own="Order",
    base=ChunkOrder,
)

__all__ = [
    "ORDERS",
    "ChunkOrder",
    "InOrder",
    "OrderContext",
]
