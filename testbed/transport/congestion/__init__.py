"""How fast may a sender send? `base` says what a congestion control is and how to add one."""

from testbed.transport.congestion.base import CongestionControl, Feedback
from testbed.transport.congestion.fixed import FixedRate
from testbed.transport.registry import Registry

CONGESTION_CONTROLS: Registry[CongestionControl] = Registry(
    "congestion control",
    {
        "fixed": FixedRate,
    },
)

__all__ = ["CONGESTION_CONTROLS", "CongestionControl", "Feedback", "FixedRate"]
