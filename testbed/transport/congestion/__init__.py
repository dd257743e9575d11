"""How fast may a sender send? `base` says what a congestion control is and how to add one."""

from testbed.transport.congestion.base import CongestionControl, Feedback
from testbed.transport.congestion.bbr import Bbr
from testbed.transport.congestion.cubic import Cubic
from testbed.transport.congestion.dctcp import Dctcp
from testbed.transport.congestion.fixed import FixedRate
from testbed.transport.congestion.ltp import Ltp
from testbed.transport.congestion.reno import Reno
from testbed.transport.congestion.timely import Timely
from testbed.transport.registry import Registry

CONGESTION_CONTROLS: Registry[CongestionControl] = Registry(
    "congestion control",
    {
        "fixed": FixedRate,
        "timely": Timely,
        "reno": Reno,
        "cubic": Cubic,
        "bbr": Bbr,
        "ltp": Ltp,
        "dctcp": Dctcp,
    },
)

__all__ = [
    "CONGESTION_CONTROLS",
    "Bbr",
    "CongestionControl",
    "Cubic",
    "Dctcp",
    "Feedback",
    "FixedRate",
    "Ltp",
    "Reno",
    "Timely",
]
