"""Repairs: how is what was lost sent again? `base.py` has the interface.

To add one: a file here and a line in `REPAIRS`; or a file of your own, `repair: ./mine.py`, which
imports the transport alone.
"""

from testbed.shared.registry import Registry
from testbed.transport.repair.base import Repair
from testbed.transport.repair.passes import Once, Passes
from testbed.transport.repair.selective import Selective
from testbed.transport.repair.streaming import Streaming

REPAIRS: Registry[Repair] = Registry(
    "repair",
    {"passes": Passes, "selective": Selective, "streaming": Streaming, "once": Once},
    base=Repair,
)
