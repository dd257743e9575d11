"""The limits of the gates: the keys of `limits` in an experiment, with their defaults."""

from __future__ import annotations

from pydantic import Field

from testbed.shared.yaml_input import Section


class Limits(Section):
    """Gates: beyond them the emulator, not the protocol, decided, and the run is invalid.

    Attributes:
        rate_error: how far a calibrated rate may be from the configured one, as a share of it.
        rtt_error: how far a calibrated round trip may be from the configured one, as a share of it.
        rtt_error_s: how far it may be for each switch on the path; the larger of the two counts.
        idle_loss: share of the probes that may be lost before training, while nothing else is sent.
        queue_error: how far a calibrated queue may be from its limit, as a share of it; what the
            measurement cannot resolve is allowed on top.
        conservation: share of a link's packets that may be missing without an explanation.
        cpu_wait: share of the training time that a thread of the emulator may have been ready to
            run without running.
        cpu_others: share of the machine's processor time that processes outside the lab may have
            used while something waited for a processor.
        impairment_late_s: how late impairments may begin and end: the 99th percentile, or the
            latest where there are few.
        clock_stall_s: the longest time in which nothing may have run on the machine.
        clock_drift: how much the clock (CLOCK_MONOTONIC) may have gained or lost against the
            unadjusted one (CLOCK_MONOTONIC_RAW), in seconds per second.
        run_timeout_s: a run that takes longer is ended and has failed.
    """

    rate_error: float = Field(default=0.03, gt=0)
    rtt_error: float = Field(default=0.1, gt=0)
    rtt_error_s: float = Field(default=0.0003, gt=0)
    idle_loss: float = Field(default=0.0, ge=0, le=1)
    queue_error: float = Field(default=0.0, ge=0)
    conservation: float = Field(default=0.001, gt=0, le=1)
    cpu_wait: float = Field(default=0.3, gt=0)
    cpu_others: float = Field(default=0.25, gt=0)
    impairment_late_s: float = Field(default=0.010, gt=0)
    clock_stall_s: float = Field(default=0.1, gt=0)
    clock_drift: float = Field(default=0.0005, gt=0)
    run_timeout_s: float = Field(default=900.0, gt=0)
