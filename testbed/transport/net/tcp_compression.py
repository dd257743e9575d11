"""What kernel TCP carries in place of a payload, where a protocol compresses.

Each kind makes a block of a payload: bytes whose number follows from the layout alone, so that both
sides know it. It has

* `size(layout)`: the block's bytes;
* `count(layout)`: how many chunks arrive;
* `pack(layout, payload)`: which chunks those are, shape (chunk_count,), and the block;
* `unpack(layout, block, rows)`: puts them in their places in a buffer's rows, and returns which
  they are; ProtocolError for a block that cannot be.
"""

from testbed.transport.net.tcp_selection import Selection
from testbed.transport.net.tcp_two_values import TwoValues
from testbed.transport.protocol_config import ProtocolConfig

Compression = Selection | TwoValues


def compression_of(protocol: ProtocolConfig) -> Compression | None:
    """A protocol's; None where payloads travel as they are."""
    if protocol.coding == "two-values":
        return TwoValues()
    return None if protocol.keep == 1 else Selection(protocol.keep)
