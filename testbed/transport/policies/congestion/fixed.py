"""A fixed rate, which the experimenter chooses."""

from testbed.transport.core.congestion import CongestionControl, Feedback


class FixedRate(CongestionControl):
    """Always paces at `rate_bps`.

    Args:
        rate_bps: of Ethernet frames; in a lab `transport.pace` times the link's rate.
    """

    measures = False
    steady = True

    def __init__(self, *, rate_bps: float) -> None:
        if not rate_bps > 0:
            raise ValueError(f"rate_bps is {rate_bps}; valid: above 0")
        self._rate_bps = float(rate_bps)

    @property
    def rate_bps(self) -> float:
        return self._rate_bps

    def on_feedback(self, feedback: Feedback) -> None:
        """Ignores feedback."""
