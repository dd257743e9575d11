"""Orders of chunks: in which order is a payload sent?

`base` says what one is. To add one: a file here and a line in `ORDERS`; or a file of your own,
`order: ./mine.py`. Imports numpy, `testbed.shared` and the transport alone.
"""

from testbed.shared.registry import Registry
from testbed.transport.order.base import ChunkOrder, OrderContext
from testbed.transport.order.in_order import InOrder
from testbed.transport.order.largest_magnitude_first import LargestMagnitudeFirst
from testbed.transport.order.layer_priority import LayerPriority
from testbed.transport.order.rotating import Rotating
from testbed.transport.order.shuffled import Shuffled

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
