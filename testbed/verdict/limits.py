"""The limits of the gates: the keys of `limits` in an experiment, with their defaults."""

from __future__ import annotations

from pydantic import Field

from testbed.shared.yaml_input import Section


class Limits(Section):
    """Gates: beyond them the emulator, not the protocol, decided, and the run is invalid."""

    rate_error: float = Field(default=0.03, gt=0, description="calibrated against configured rate")
    rtt_error: float = Field(default=0.1, gt=0, description="share of the configured round trip")
    rtt_error_s: float = Field(
        default=0.0003, gt=0, description="allowed where it is more, for each switch on the path"
    )
    idle_loss: float = Field(default=0.0, ge=0, le=1, description="share of the idle probes")
    queue_error: float = Field(
        default=0.0, ge=0, description="share of a queue's limit, beyond what can be resolved"
    )
    conservation: float = Field(
        default=0.001, gt=0, le=1, description="share of a link's packets that nothing explains"
    )
    cpu_wait: float = Field(
        default=0.3,
        gt=0,
        description="share of the training time that a thread of the emulator was ready to run "
        "and did not run",
    )
    cpu_others: float = Field(
        default=0.25,
        gt=0,
        description="share of the machine's processor time that processes outside the lab used "
        "while something waited for a processor",
    )
    impairment_late_s: float = Field(default=0.010, gt=0, description="p99 over begins and ends")
    clock_stall_s: float = Field(default=0.1, gt=0, description="longest time that nothing ran")
    clock_drift: float = Field(default=0.0005, gt=0, description="CLOCK_MONOTONIC against its raw")
    run_timeout_s: float = Field(
        default=900.0, gt=0, description="a run that takes longer is ended and has failed"
    )
