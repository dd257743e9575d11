"""The limits of the gates: the keys of `limits` in an experiment, with their defaults."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from testbed.shared import problems
from testbed.shared.registry import one_of
from testbed.shared.section import Section
from testbed.verdict.gate_explanations import GATES


def _with_keys_of_gates(schema: dict[str, Any]) -> None:
    """Tells editors what `waive` may name."""
    schema["items"]["enum"] = sorted(GATES)


# Gates that say that the machine was busy.
OF_THE_MACHINE = frozenset({"cpu_wait_s", "cpu_others", "clock_stall_s", "standstill_s"})
FORMER = {
    "clock_drift": "is no gate any more, since it compared two views of one clock; leave it out: "
    "clock_stall_s finds processors that stood still",
    "cpu_wait": "is no gate any more; leave it out: cpu_wait_s judges how long packets wait for "
    "the switch, and what a starved one loses or does not carry has gates of its own",
}


class Limits(Section):
    """Gates: beyond them the emulator, not the protocol, decided, and the run is invalid.

    Attributes:
        rate_error: how far a calibrated rate, the median of its trials, may be from the configured
            one, as a share of it.
        rate_spread: how far the trials of a calibrated rate may scatter: their interquartile range,
            as a share of the configured rate.
        rtt_error: how far a calibrated round trip may be from the configured one, as a share of it.
        rtt_error_s: how far it may be for each switch on the path; the larger of the two counts.
        idle_loss: share of the probes that may be lost before training, while nothing else is sent;
            what the links are configured to lose is allowed on top.
        queue_error: how far a calibrated queue may be from its limit, as a share of it; what the
            measurement cannot resolve is allowed on top.
        conservation: share of a link's packets that may be missing without an explanation.
        emulator_losses: packets that a part of the emulator, such as the socket of a switch's port,
            may lose by accident.
        cpu_wait_s: how long a thread of the emulator may have waited to run, once it was ready, in
            the mean of its worst second.
        cpu_others: share of the machine's processor time that processes outside the lab may have
            used while something waited for a processor.
        host_cpu: how far the processor time of a host may exceed its share, as a part of the share.
        impairment_late_s: how late any impairment may begin or end.
        impairments_unmet: how many impairments may have met no packet, or nothing else to act on.
        loss_error: how far the share of packets that a loss took may be from the configured one;
            what chance explains is allowed on top.
        relay_late_s: how long after their time a relay of delayed links may send frames: the 99th
            percentile of the worst second, or of 300 frames where a second has fewer.
        relay_late_max_s: how late, or early, it may send any single frame.
        delay_error: how far the mean delay of a link may be from the configured one in any quarter
            of a second, as a share of it.
        delay_error_s: the same as a time; the larger of the two counts.
        clock_stall_s: the longest time in which one of the machine's processors may have stood
            still.
        standstill_s: the longest time in which a part of the emulator may have stood still while
            the run trained; a quarter of the median round is allowed if that is more.
        socket_buffer_bytes: how many bytes of the deepest queue the switch's socket buffer may
            fail to hold.
        link_settings: how many settings of links (rate, bucket, queue, ECN, segments of a
            packet) may differ from the configured ones, before, during and after the training.
        packet_bytes: the largest mean size of the packets in a queue, in bytes. A full Ethernet
            frame has 1514; more is a clump, which the queue counts and drops as one packet.
        rate_under_load: how far a link's rate may be from the configured one while packets wait,
            over the whole training and in any half second, as a share of it; and what a stall may
            have kept back in half a second.
        samples_missing: share of the samples of queues, flows or processes that may be missing; two
            seconds without any of them are too much in any case.
        run_timeout_s: a run that takes longer is ended and has failed.
        waive: keys of `limits` whose gates do not decide. They are measured and shown, and the
            report says that they were waived. So it does of a limit that is looser than its
            default, which decides all the same.
    """

    rate_error: float = Field(default=0.03, gt=0)
    rate_spread: float = Field(default=0.05, gt=0)
    rtt_error: float = Field(default=0.1, gt=0)
    rtt_error_s: float = Field(default=0.0003, gt=0)
    idle_loss: float = Field(default=0.0, ge=0, le=1)
    queue_error: float = Field(default=0.0, ge=0)
    conservation: float = Field(default=0.00001, ge=0, le=1)
    emulator_losses: int = Field(default=0, ge=0)
    cpu_wait_s: float = Field(default=0.0005, gt=0)
    cpu_others: float = Field(default=0.25, gt=0)
    host_cpu: float = Field(default=0.05, gt=0)
    impairment_late_s: float = Field(default=0.010, gt=0)
    impairments_unmet: int = Field(default=0, ge=0)
    loss_error: float = Field(default=0.0, ge=0, le=1)
    relay_late_s: float = Field(default=0.003, gt=0)
    relay_late_max_s: float = Field(default=0.02, gt=0)
    delay_error: float = Field(default=0.1, gt=0)
    delay_error_s: float = Field(default=0.0005, gt=0)
    clock_stall_s: float = Field(default=0.025, gt=0)
    standstill_s: float = Field(default=0.05, gt=0, exclude_if=lambda value: value == 0.05)
    socket_buffer_bytes: int = Field(default=0, ge=0)
    link_settings: int = Field(default=0, ge=0)
    packet_bytes: int = Field(default=1514, ge=1514)
    rate_under_load: float = Field(default=0.03, gt=0)
    samples_missing: float = Field(default=0.2, gt=0, le=1)
    run_timeout_s: float = Field(default=900.0, gt=0)
    waive: list[str] = Field(default=[], json_schema_extra=_with_keys_of_gates)

    @model_validator(mode="before")
    @classmethod
    def _former_keys_are_told(cls, given: Any) -> Any:
        found = [key for key in FORMER if isinstance(given, dict) and key in given]
        if found:
            raise problems.raised(
                [problems.Problem((key,), FORMER[key], problems.UNKNOWN) for key in found]
            )
        return given

    @field_validator("waive")
    @classmethod
    def _gates_are_known(cls, keys: list[str]) -> list[str]:
        titles = {about.title: key for key, about in reversed(GATES.items())}
        for key in keys:
            if key in GATES:
                continue
            if key in FORMER:
                raise ValueError(f"{key!r} {FORMER[key]}")
            if key.lower() in titles:
                valid = ", ".join(sorted(GATES))
                meant = titles[key.lower()]
                raise ValueError(f"{key!r} is no gate; valid: {valid}; did you mean {meant!r}?")
            raise ValueError(f"{key!r} is no gate; {one_of(key, sorted(GATES))}")
        return keys
