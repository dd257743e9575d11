"""Repairs: how is what was lost sent again?

`core.repair` has the interface. To add one: a file here and a line in `REPAIRS`; or a file of your
own, `repair: ./mine.py`, which imports the transport alone.
"""

from testbed.shared.registry import Registry
from testbed.transport.core.repair import Repair
from testbed.transport.policies.repair.passes import Once, Passes
from testbed.transport.policies.repair.selective import Selective
from testbed.transport.policies.repair.streaming import Streaming

REPAIRS: Registry[Repair] = Registry(
    "repair",
    {"passes": Passes, "selective": Selective, "streaming": Streaming, "once": Once},
    base=Repair,
)
