"""Congestion controls: how fast may a sender send?

`base.py` has the interface. To add one: a file here and a line in `CONGESTION_CONTROLS`; or
a file of your own, `congestion_control: ./mine.py`, which imports the transport alone. Controls
meet the goals in tests/transport/test_congestion_goals.py, whose `CONTROLS` lists them.
"""

from testbed.shared.registry import Registry
from testbed.transport.congestion.base import CongestionControl
from testbed.transport.congestion.bbr import Bbr, Ltp
from testbed.transport.congestion.fixed import CompensatedRate, FixedRate
from testbed.transport.congestion.timely import Timely
from testbed.transport.congestion.window import Cubic, Reno

CONGESTION_CONTROLS: Registry[CongestionControl] = Registry(
    "congestion control",
    {
        "fixed": FixedRate,
        "compensated": CompensatedRate,
        "timely": Timely,
        "reno": Reno,
        "cubic": Cubic,
        "bbr": Bbr,
        "ltp": Ltp,
    },
    base=CongestionControl,
)
